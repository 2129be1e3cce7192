"""Statements in the text of notebooks as code that runs in their kernel, by notebook and preceding cell."""

from __future__ import annotations

STATEMENTS: dict[str, dict[str, str]] = {
    "1-compare-policies": {
        "layers": """
            first = layers.loc[["conv1_1", "conv1_2"]]
            assert layers["copy to the host"].sum() > 3 * layers["forward compute"].sum()
            assert first["copy to the host"].sum() > 0.4 * layers["copy to the host"].sum()
        """,
        "oom": """
            times = comparison.frame()["iteration_ns"]
            assert comparison["none"].failure == "out of memory"
            stalls = comparison.frame().filter(like="stalled_").sum(axis=1)
            assert stalls["capuchin"] == 0 and stalls["home"] == 0
            assert times["home"] < times["capuchin"] < times["vdnn(mode=conv)"] < times["superneurons"] < times["vdnn"]
            assert times["vdnn(mode=dynamic)"] == times["vdnn(mode=conv)"] and times["vdnn"] > 2 * times["ideal"]
            assert times["home"] < 1.03 * times["ideal"] and times["home"] < 1.03 * comparison.bound.ns
            assert comparison.frame()["device_peak_bytes"]["ideal"] > 11 * 2**30
        """,
        "vdnn": """
            assert vdnn.metrics.device_peak_bytes < 9 * 2**30
            offloads = vdnn.timeline.frame().query("kind == 'copy_d2h' and iteration == iteration.max()")
            busy = (offloads["end_ns"] - offloads["start_ns"]).sum()
            assert busy > 0.98 * (offloads["end_ns"].max() - offloads["start_ns"].min())
        """,
        "why": """
            assert simgpu.explain_result(vdnn).frame()["ns"].sum() == vdnn.iteration_ns - vdnn.ideal_ns
        """,
        "what-if": """
            baseline, faster, larger, *_ = (answer.result for answer in answers)
            assert faster.iteration_ns < 0.7 * baseline.iteration_ns == 0.7 * larger.iteration_ns
        """,
        "home": """
            recomputed, swapped = placement.query("action == 'recompute'"), placement.query("action == 'swap'")
            assert (len(recomputed), len(swapped)) == (2, 4) and len(placement.query("action == 'keep'")) > 20
            assert (recomputed["overhead_ns"] < recomputed["bytes"] * 1e9 / node.link.d2h_bandwidth / 5).all()
            assert (swapped["prefetched_ns"] < swapped["needed_ns"]).all()
        """,
    },
    "2-sparsity-and-compression": {
        "layers": """
            assert zeros["conv1:convolution"].between(45, 55).all()
            assert (zeros["pool1:max_pool2d_with_indices"] < zeros["conv1:convolution"]).all()
            assert zeros["conv4:convolution"].iloc[10:].min() > 90 and zeros["fc5:addmm"].iloc[10:].min() > 85
        """,
        "networks": """
            recorded = means.drop(columns="vgg16-b128-v100")
            assert recorded["photos-resnet-cpu"].max() < 25
            rising = recorded.drop(columns="photos-resnet-cpu")
            assert all(mean.dropna().iloc[-1] > 50 for _, mean in rising.items())
            assert all(mean[1] - mean[0] > (mean.max() - mean[0]) / 2 for _, mean in rising.items())
        """,
        "ratios": """
            at = ratios.set_index(["zeros (%)", "codec", "layout"])["ratio"]
            assert abs(at[50, "zvc", "nchw"] - at[50, "zvc", "nhwc"]) < 1e-9
            assert at[50, "rle", "nhwc"] < 0.7 * at[50, "rle", "nchw"]
            assert at[50, "zlib", "nchw"] < 1.2 * at[50, "zvc", "nchw"]
            assert at[50, "bpc", "nchw"] == min(at[50, codec, "nchw"] for codec in CODECS)
        """,
        "codec-time": """
            ms = sweep.frame().pivot(index="d2h_bytes_per_s", columns="policy", values="iteration_ns").astype(float)
            codec = sweep.frame().pivot(index="d2h_bytes_per_s", columns="policy", values="codec_ns").astype(float)
            plain, static = ms["vdnn(mode=conv)"], ms["static(launch=grid_search)"]
            cswap = ms["cswap(launch=grid_search)"]
            assert cswap[8 * 10**9] < 0.75 * plain[8 * 10**9] and static[64 * 10**9] > 1.05 * plain[64 * 10**9]
            assert (cswap <= static).all() and codec["cswap(launch=grid_search)"].is_monotonic_decreasing
            assert (codec["cswap(launch=grid_search)"].loc[48 * 10**9 :] == 0).all()
        """,
        "training": """
            assert len(set(training.counts)) > 1 and training.counts[0] < max(training.counts)
        """,
        "training-digits": """
            assert small.counts[0] == 0 and small.counts[-1] == 1
        """,
        "designs": """
            rate = designs["samples_per_s"]
            assert 0.9 * rate["oracle"] < rate["cswap(launch=grid_search)"] < rate["oracle"]
            assert rate["cdma"] / rate["vdnn"] > rate["cswap(launch=grid_search)"] / rate["vdnn(mode=conv)"] > 1
            assert designs["d2h_bytes"]["vdnn"] > 1.5 * designs["d2h_bytes"]["vdnn(mode=conv)"]
        """,
    },
    "3-how-much-memory": {
        "bounds": """
            weights = [bounds.bound.shares[kind] for kind in ("weight", "weight_gradient", "optimizer_state")]
            assert bounds.bound.bytes < peak / 5 and sum(weights) > 0.9 * bounds.bound.bytes
        """,
        "limits": """
            runs = sweep.frame()
            runs = runs.assign(GiB=runs["budget_bytes"] / 2**30)
            curves = runs.pivot(index="GiB", columns="policy", values="samples_per_s")
            undivided = curves.drop(columns=["modnn", "vdnn+", "vdnn(mode=dynamic)"])
            fastest = undivided.max(axis=1).dropna()
            assert all(fastest[budget] <= rate * (1 + 1e-9) for budget, rate in bound)
            assert fastest.index.min() == 8 and curves["vdnn"].loc[9] == curves["vdnn"].loc[12]
            assert curves[["modnn", "vdnn+"]].notna().all(axis=None)
            assert curves["modnn"].loc[12] > ideal > curves["modnn"].loc[4] > 0.8 * ideal
            assert curves["vdnn(mode=dynamic)"].loc[9] < curves["vdnn(mode=dynamic)"].loc[8]
        """,
        "smallest": """
            budget = {label: each.budget for label, each in smallest.by_policy.items()}
            assert abs(budget["none"] - peak) < 0.01 * 2**30 and budget["modnn"] - smallest.bound < 2**20
            assert smallest.bound == bounds.bound.bytes
            assert budget["superneurons"] == budget["capuchin"] == budget["home"]
            below = smallest.frame()["resident_below"]
            assert set(below[["superneurons", "capuchin", "home"]]) == {"conv2_1 784 MiB, conv2_2.grad 784 MiB"}
            assert below[["modnn", "vdnn+"]].str.startswith("fc6.weight").all()
        """,
        "front": """
            front = sweep.front()
            assert set(front[front["device_peak_bytes"] > 1.8 * 2**30]["policy"]) == {"modnn"}
            assert undivided["home"].loc[8] > 0.9 * ideal
        """,
    },
    "4-buddy-memory": {
        "thresholds": """
            final = {name: profile.final.ratio for name, profile in profiles.items()}
            assert final["hpc-ep"] > 2.5 and final["hpc-seismic"] > 1.9
            assert max(final[name] for name in ("hpc-cg", "hpc-lbm", "hpc-multigrid", "photos-resnet-cpu")) < 1.1
            assert ratios["hpc-seismic"][0.1] < 1.2 and ratios["hpc-seismic"][0.4] < 1.06 * final["hpc-seismic"]
            assert ratios["photos-vgg-cpu"][0.4] > 1.15 * final["photos-vgg-cpu"]
        """,
        "drift": """
            assert seismic.drift[0].overflow == 0 and seismic.drift[-1].overflow > 1.5 * seismic.final.overflow
        """,
        "link": """
            slowdown = by_link.frame().pivot(index="d2h_bytes_per_s", columns="trace", values="slowdown").astype(float)
            slow, fast = slowdown.iloc[0], slowdown.loc[150 * 10**9]
            assert slow["hpc-seismic"] > 1.5 > 1 > fast["hpc-seismic"] and slowdown["hpc-cg"].min() > 1
            gain = slow - slowdown.iloc[-1]
            assert gain.drop(["hpc-ep", "hpc-seismic"]).max() < 0.01 < gain["hpc-ep"]
        """,
        "cache": """
            hits, cost = table["metadata_hit_rate"], table["slowdown"]["hpc-seismic"]
            assert hits["hpc-seismic"]["128 B"] < 0.5 and hits["hpc-seismic"]["4 KiB"] > 0.95
            assert hits.drop(columns="hpc-seismic").min().min() > 0.95
            assert cost["128 B"] > cost["4 KiB"] + 0.05 and cost["16 KiB"] > cost["4 KiB"] - 0.01
        """,
        "unified-plot": """
            paged = by_memory[[name for name in by_memory if name.endswith("um")]].loc[10:].min().min()
            buddy = by_memory[[name for name in by_memory if name.endswith("buddy")]].max().max()
            assert by_memory.loc[0, "hpc-ep, um"] == 1 and paged > 4 * buddy
        """,
        "capacity": """
            more = {name: profiles[name].final.ratio - 1 for name in SOLVERS}
            assert set(sorted(more, key=more.get)[-2:]) == {"hpc-ep", "hpc-seismic"}
            assert all(more[name] < 0.2 for name in ("hpc-cg", "hpc-lbm", "hpc-multigrid"))
        """,
    },
    "5-record-your-own-model": {
        "compare": """
            assert comparison["none"].failure == "out of memory" and comparison["vdnn"].result is not None
        """,
        "resident": """
            assert set(by_operator.nlargest(2).index) == {"convolution", "native_batch_norm"}
            assert by_operator.nlargest(2).sum() > 0.6 * resident.sum()
        """,
        "modelled-compare": """
            slowdown = on_v100.frame()["slowdown"]
            assert slowdown["vdnn"] > 4 and slowdown["home"] < slowdown["capuchin"] < 1.2
        """,
        "max-batch": """
            batch, speed = largest.frame()["batch"], largest.frame()["samples_per_s"]
            assert batch["home"] > batch["vdnn"] > 2 * batch["none"]
            assert speed["vdnn"] < 0.3 * speed["none"] and 0.7 * speed["none"] < speed["home"] < speed["none"]
        """,
        "store": """
            assert same
        """,
    },
}
