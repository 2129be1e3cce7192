"""Codecs as software on a GPU: what they take there, how that is predicted, and how their launches are tuned.

`response` tells the nanoseconds of an encode or decode, `samples` measures it with noise, `timemodel` predicts it from
samples (compared with other regressions in `compare`), `tuner` looks for the launch setting that makes it least. The
published figures that the surface is fitted to are in `paper`, the fit itself in `fit`. After CSWAP (Chen et al.,
CLUSTER 2021), sections IV-C and IV-D.
"""
