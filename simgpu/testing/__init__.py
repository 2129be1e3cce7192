"""For tests of who uses simgpu: timings that must not change unnoticed, as a pytest fixture.

With pytest and the extra ``testing`` installed, any test may ask for `timing_regression`; nothing needs to be switched
on. A test module::

    import simgpu

    def test_our_policy_is_as_fast_as_it_was(timing_regression):
        trace = simgpu.load_trace("resnet20-cifar-cpu")
        node = simgpu.load_node("laptop-2gb", {"gpu.memory": "40 MiB"})
        timing_regression.check(simgpu.simulate(trace, node, "vdnn"))

    def test_a_study_of_ours_may_get_a_little_slower(timing_regression):
        scenario = simgpu.load_scenario("quickstart")
        timing_regression.check(scenario, tolerances={"*_ns": "1%", "samples_per_s": "1%", "slowdown": "1%"})

The first run of a test fails, and stores its result in a folder named after the module, next to it: numbers in
``timings.json``, each timeline in a ``.csv.gz``. Commit them. From then on the test passes while every metric, every
count and every event of every timeline is as stored, and otherwise says which metric differs by how much, and at which
event the timelines part. ``pytest --force-regen`` stores anew what differs, and fails those tests once more;
``pytest --regen-all`` stores all, and passes: both are options of pytest-regressions, on which the fixture stands, and
so is ``--with-test-class-names``, which tests of one name in several classes of a module need.

`check` takes a result, a comparison, or a scenario, all policies of which it runs. Tolerances are those of ``simgpu
check`` (see `simgpu.experiments.regression.tolerances`); a ``tolerances.yaml`` in the module's folder holds for all its
tests. Once one over 0 is given, a timeline that differs is no failure of itself. In annotations the fixture is a
`simgpu.testing.timing_regression.TimingRegression`.
"""
