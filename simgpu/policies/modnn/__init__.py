"""moDNN (Chen et al., TPDS 2019): memory optimal training by a static schedule, after section 5.

Lives here: the policy (`policy`), the flow of algorithm 1 (`schedule`) and its parts: what tasks need (`tasks`), the
two streams and their predicted times (`lanes`), memory and offloading schemes (`memory`), prefetching (`prefetch`),
choice of convolution algorithms (`algorithms`), and the program (`writer`). Does not live here: partitioning the batch
(`simgpu.policies.partition`).
"""
