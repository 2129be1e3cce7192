"""Codecs that run as kernels on a GPU: their times, predictions of these times, and tuning of their launches.

`response`: nanoseconds of encoding and decoding, as a response surface; `fit` fits it to the published times in
`paper`. `samples` draws noisy samples of these times, `timemodel` predicts times from samples, `compare` compares this
with other regressions, `tuner` searches for the fastest launch setting. Source: CSWAP (Chen et al., CLUSTER 2021),
sections IV-C and IV-D.
"""
