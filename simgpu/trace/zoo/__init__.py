"""Networks of the papers, each from its published description, and how one becomes a modelled trace."""
