import os, time, sys, traceback
import labkit as lab
from labkit.devices import mistakes
t=time.time()
run = lab.launch(mistakes.refusals, ranks=1)
print("first launch", time.time()-t, run, flush=True)
for k,v in run[0].items(): print("  ", k, "->", v[:400].replace("\n"," | "))
t=time.time(); lab.launch(print, ranks=1); print("second", time.time()-t)
def dev():
    import torch, torch.distributed as dist
    return str(torch.get_default_device()), dist.get_backend(), str(lab.launching.rank.current().device) if False else ""
print(lab.launch(dev, ranks=1).results, lab.launch(dev, ranks=2).results)
def tr(name, f):
    t=time.time()
    try: r=f(); print("OK", name, f"{time.time()-t:.1f}s", str(r)[:1500], flush=True)
    except BaseException as e: print("FAIL", name, type(e).__name__, str(e)[:1500], flush=True)
from labkit import pipeline, data_parallel, collectives, sharding
from labkit.planner import need
tr("pipe", lambda: pipeline.Step(ranks=1, microbatches=2).run())
tr("dp", lambda: data_parallel.Step(ranks=1).run())
for e in ("ddp","fsdp1","fsdp","fsdp_grad_op"):
    tr(e, lambda: sharding.Step(engine=e, ranks=1).run())
    tr(e+" cmp", lambda: str(sharding.Step(engine=e, ranks=1).compare()))
tr("call", lambda: collectives.Call(ranks=2).run())
tr("pipe2", lambda: pipeline.Step(ranks=2, microbatches=4).compare())
