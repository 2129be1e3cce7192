"""moDNN (Chen et al., TPDS 2019): memory optimal training by a static schedule, after section 5."""
