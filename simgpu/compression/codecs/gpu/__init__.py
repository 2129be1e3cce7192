"""Codecs as software on a GPU: their times, the prediction of these, and how their launches are tuned.

`response` gives the nanoseconds of an encode or decode, `samples` measures it with noise, `timemodel` predicts it from
samples (compared with other regressions in `compare`), `tuner` searches the fastest launch setting. The
published figures that the surface is fitted to are in `paper`, the fit itself in `fit`. After CSWAP (Chen et al.,
CLUSTER 2021), sections IV-C and IV-D.
"""
