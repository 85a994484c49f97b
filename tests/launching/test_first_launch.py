"""Laws of the first launch in a fresh process: it waits for torch and what its function names, a
stop does not wait at all, and the notebook's locale does not matter."""

import os
import subprocess
import sys
import textwrap

import pytest

ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def fresh(tmp_path, program, **environ):
    """What a program prints that is run by a process of its own, as words."""
    script = tmp_path / "fresh.py"
    script.write_text("import labkit as lab\n" + textwrap.dedent(program))
    ended = subprocess.run(
        [sys.executable, script],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


def test_the_first_launch_waits_for_torch_alone_and_imports_nothing_into_the_notebook(tmp_path):
    program = """
        import sys
        def look():
            import sys, torch, torch.distributed as dist
            from labkit.launching.verdicts import introspect
            from labkit.measure import trace
            with trace.record():
                dist.all_reduce(torch.ones(1))
            assert len(introspect.calls({})) == 1
            tops = {name[:6] for name in sys.modules}
            return "deepsp" in tops, "torch._inductor" in sys.modules
        if __name__ == "__main__":
            print(*lab.launch(look)[0], "torch" in sys.modules, "numpy" in sys.modules)
    """
    assert fresh(tmp_path, program) == ["False"] * 4


@pytest.mark.again
def test_a_rank_that_is_forked_early_imports_by_itself_what_it_needs(tmp_path):
    program = """
        def train():
            import importlib, sys
            early = "torch.distributed.fsdp" not in sys.modules
            import torch
            fsdp = importlib.import_module("torch.distributed.fsdp")
            model = getattr(fsdp, "_".join(("fully", "shard")))(torch.nn.Linear(4, 4))
            model(torch.ones(1, 4)).sum().backward()
            return early, type(model.weight.grad).__name__
        if __name__ == "__main__":
            run = lab.launch(train)
            assert run[0] == run[1]
            print(*run[0])
    """
    assert fresh(tmp_path, program) == ["True", "DTensor"]


@pytest.mark.again
def test_the_first_launch_waits_for_what_its_function_names(tmp_path):
    program = """
        import torch
        from torch.distributed.fsdp import fully_shard
        def wrapped():
            return fully_shard(torch.nn.Linear(4, 4))
        def train():
            import sys
            there = "torch.distributed.fsdp" in sys.modules
            wrapped()
            return there, any(name.startswith("deepsp") for name in sys.modules)
        if __name__ == "__main__":
            print(*lab.launch(train)[0])
    """
    assert fresh(tmp_path, program) == ["True", "False"]


@pytest.mark.again
def test_the_first_launch_that_names_deepspeed_waits_for_it_and_trains(tmp_path):
    program = """
        def train():
            import sys
            there = "deepspeed" in sys.modules
            import torch
            import deepspeed
            config = {"train_batch_size": 2, "optimizer": {"type": "Adam"}}
            model = torch.nn.Linear(4, 4)
            engine, *_ = deepspeed.initialize(
                model=model, model_parameters=model.parameters(), config=config
            )
            engine.backward(engine(torch.ones(1, 4)).sum())
            engine.step()
            return there, engine.global_steps
        if __name__ == "__main__":
            run = lab.launch(train)
            assert run[0] == run[1]
            print(*run[0])
    """
    assert fresh(tmp_path, program) == ["True", "1"]


def test_however_many_ask_at_once_the_cpu_is_looked_at_once(tmp_path):
    (tmp_path / "cpuinfo.py").write_text(
        "import os, time\n"
        "def get_cpu_info():\n"
        "    print('looked', flush=True)\n"
        "    time.sleep(0.2)\n"
        "    return {'arch': 'here'}\n"
    )
    program = f"""
        import os
        from labkit.launching.fork import imports
        imports.remember_cpu({str(tmp_path)!r})
        import cpuinfo
        asking = [os.fork() for _ in range(1)]
        asking += [os.fork()]
        assert cpuinfo.get_cpu_info() == {{"arch": "here"}}
        for pid in filter(None, asking):
            os.waitpid(pid, 0)
        os._exit(0)
    """
    assert fresh(tmp_path, program) == ["looked"]


@pytest.mark.again
def test_the_second_run_in_a_row_finds_everything_there(tmp_path):
    program = """
        from labkit.launching.fork import imports
        def missing():
            import sys
            return [name for name in imports.LATER if name not in sys.modules]
        if __name__ == "__main__":
            lab.launch(missing)
            print("missing:", *lab.launch(missing)[0])
    """
    assert fresh(tmp_path, program) == ["missing:"]


@pytest.mark.again
def test_deepspeed_is_imported_ahead_once_a_launch_names_it(tmp_path):
    program = """
        from labkit.launching.fork import zygote_client
        def look(engine):
            import sys
            return any(name.startswith("deepsp") for name in sys.modules)
        if __name__ == "__main__":
            lab.launch(look, "fsdp")
            zygote_client.seconds_to_complete()
            print(*(lab.launch(look, engine)[0] for engine in ("fsdp", "zero2", "fsdp")))
    """
    assert fresh(tmp_path, program) == ["False", "True", "True"]


def test_a_zygote_that_has_imported_everything_says_so_and_has_done_it(tmp_path):
    program = """
        from labkit.launching.fork import imports, zygote_client
        def missing():
            import sys
            return [name for name in (*imports.FIRST, *imports.LATER) if name not in sys.modules]
        if __name__ == "__main__":
            lab.launch(missing)
            zygote_client.seconds_to_complete()
            print("missing:", *lab.launch(missing)[0])
    """
    assert fresh(tmp_path, program) == ["missing:"]


def test_what_is_expected_is_there_for_the_next_ranks(tmp_path):
    program = """
        from labkit.launching.fork import zygote_client
        def here():
            import sys
            return "wave" in sys.modules
        if __name__ == "__main__":
            zygote_client.expect("wave")  # there is nobody to hear it
            print(*lab.launch(here))
            zygote_client.seconds_to_complete()
            zygote_client.expect("wave", "no.such.module")
            print(*lab.launch(here))
    """
    assert fresh(tmp_path, program, LABKIT_DEVICE="cpu") == ["False", "False", "True", "True"]


def expected_by_the_first_ranks(tmp_path, module, hang_s, **environ):
    """Whether the first launch's ranks, as words, find a module that was asked for before."""
    program = f"""
        from labkit.launching.fork import zygote_client
        def here():
            import sys
            return {module!r} in sys.modules
        if __name__ == "__main__":
            zygote_client.running()
            zygote_client.expect({module!r})
            print(*lab.launch(here, hang_s={hang_s}))
    """
    return fresh(tmp_path, program, LABKIT_DEVICE="cpu", **environ)


def test_what_is_expected_is_there_for_the_first_ranks_too(tmp_path):
    assert expected_by_the_first_ranks(tmp_path, "wave", None) == ["True", "True"]


@pytest.mark.again
def test_ranks_that_wait_for_an_import_before_their_fork_are_not_silent(tmp_path):
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(4)\n")
    found = expected_by_the_first_ranks(tmp_path, "slow_to_import", 1, PYTHONPATH=str(tmp_path))
    assert found == ["True", "True"]


@pytest.mark.again
def test_a_launch_works_from_a_process_with_an_ascii_locale(tmp_path):
    program = r"""
        import locale
        from labkit.launching.fork import zygote_client
        def say(word):
            print("caf\u00e9", word)
            return "\u00fc"
        if __name__ == "__main__":
            zygote_client.seconds_to_complete()
            run = lab.launch(say, "\u00e9")
            assert run[1] == "\u00fc" and run.logs[1] == "caf\u00e9 \u00e9\n", ascii(run.logs)
            log = zygote_client.running().folder / "zygote.txt"
            print(locale.getpreferredencoding(False), b"UnicodeDecodeError" in log.read_bytes())
    """
    encoding, failed = fresh(tmp_path, program, **ASCII)
    assert encoding != "UTF-8" and failed == "False"


STOP = """
    import time
    from labkit.launching.fork import zygote_client
    def forever():
        time.sleep(600)
    def stopped():
        job = lab.start(forever)
        began = time.monotonic()
        job.stop()
        seconds = time.monotonic() - began
        try:
            job.wait()
        except lab.Stopped:
            return seconds
    if __name__ == "__main__":
        first = stopped()
        {then}
        print(first, stopped())
        assert list(lab.launch(int)) == [0, 0]
        print(zygote_client.running().process.pid)
"""


@pytest.mark.alone  # a bound in seconds
@pytest.mark.parametrize("then", ["", "lab.launch(int)"], ids=["torch", "what comes after torch"])
def test_stop_answers_within_a_second_while_the_zygote_still_imports(tmp_path, then):
    *seconds, pid = fresh(tmp_path, STOP.replace("{then}", then))
    assert max(map(float, seconds)) < 1
    assert not os.path.exists(f"/proc/{pid}")


@pytest.mark.again
def test_all_that_wait_for_the_zygote_learn_that_it_is_ready(tmp_path):
    program = """
        def here():
            return "here"
        if __name__ == "__main__":
            jobs = [lab.start(here, ranks=1) for _ in range(3)]
            print(*(job.wait()[0] for job in jobs))
    """
    assert fresh(tmp_path, program) == ["here"] * 3
