"""`fit`: whether a model fits a GPU, with which options of its training, and what each costs."""
