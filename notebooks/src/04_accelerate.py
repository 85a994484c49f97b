# ---
# jupyter:
#   labkit:
#     sections: ["8.2.1", "8.2.2", "8.2.3", "8.2.4"]
#     needs: ["two CPU cores"]
#     minutes: 60
# ---

# %% [markdown]
# # Accelerate
#
# *Sections 8.2.1 to 8.2.4 of the source material. About 60 minutes. No GPU is needed.*
#
# Hugging Face Accelerate promises one script for one process, many, mixed precision, DeepSpeed and FSDP. You will write such a script, run it in six ways without touching it, and check that the weights come out the same. Then you will open the calls it is made of, and see what each of them did: `prepare`, `backward`, `accumulate`, `clip_grad_norm_`, `gather`, `save_state`.
#
# The promise is about the code. What is trained can still change without a word; each section has an example.

# %% [markdown] lang="zh" of="907e7db0"
# # Accelerate
#
# *对应原资料 8.2.1 到 8.2.4 节，约 60 分钟。不需要 GPU。*
#
# Hugging Face Accelerate 承诺：同一份脚本，单进程、多进程、混合精度、DeepSpeed、FSDP 都能跑。你会写出这样一份脚本，一个字不改地用六种方式运行，再核对得到的权重是否相同。然后逐个拆开它用到的调用，看看每一个到底做了什么：`prepare`、`backward`、`accumulate`、`clip_grad_norm_`、`gather`、`save_state`。
#
# 这个承诺只管代码。训练的内容仍可能悄悄改变，每一节都有一个例子。

# %%
import os

os.environ["CUDA_VISIBLE_DEVICES"] = (
    ""  # this chapter shows machines without GPUs, also where there are some
)
import labkit as lab

lab.warm()  # starts the process that forks ranks, while the rest loads
import tempfile
from pathlib import Path

import torch
from labkit import accelerate as accelerated, model, widgets
from labkit.accelerate import check

LANGUAGE = "en"
check.language(LANGUAGE)
folder = tempfile.TemporaryDirectory()


def difference(ours, theirs):
    """The largest difference between two dicts of tensors."""
    return max((ours[name].float() - theirs[name].float()).abs().max().item() for name in theirs)


# %% [markdown] sections="8.2.1"
# ## One script
#
# An ordinary script, and what Accelerate adds to it: an `Accelerator`, `prepare` around the objects, `accelerator.backward` in place of `loss.backward`. `accumulate`, `sync_gradients` and `clip_grad_norm_` are explained below. The batch size is the script's argument. (AdamW divides by the size of a gradient; the larger `eps` keeps it from blowing up rounding where that is nearly 0.) The first half sets up:

# %% [markdown] lang="zh" of="34390311"
# ## 一份脚本
#
# 一份普通的脚本，加上 Accelerate 的几样东西：一个 `Accelerator`；用 `prepare` 包住各个对象；用 `accelerator.backward` 代替 `loss.backward`。`accumulate`、`sync_gradients` 和 `clip_grad_norm_` 下面再解释。批大小是脚本的参数。（AdamW 要除以梯度的大小；`eps` 取大一些，免得在梯度接近 0 的地方放大舍入误差。）前一半做准备：

# %%
SET_UP = """\
import os, sys, torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from labkit import model

accelerator = Accelerator()
torch.manual_seed(0)
net = model.Transformer(2, 32, 2, max_len=32)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, eps=1e-4)
loader = DataLoader(TensorDataset(*model.story_tokens(64, 32)), batch_size=int(sys.argv[1]))
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
"""

# %% [markdown]
# The second half trains one epoch on 64 passages:

# %% [markdown] lang="zh" of="57872506"
# 后一半在 64 段文本上训练一个 epoch：

# %%
LOOP = """
for tokens, targets in loader:
    with accelerator.accumulate(net):
        loss = model.loss(net(tokens), targets)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
print(f"rank {accelerator.process_index} of {accelerator.num_processes}, {accelerator.mixed_precision}, {loss.item():.6f}")
if "TORCHELASTIC_RUN_ID" in os.environ: accelerator.wait_for_everyone(), sys.stdout.flush(), os._exit(0)  # no teardown
"""
script = Path(folder.name, "train.py")
print(script.write_text(SET_UP + LOOP), "characters")

# %% [markdown] sections="8.2.3"
# ## The configuration file
#
# `accelerate config` asks questions and writes the answers to a file of YAML; any editor can write it, too. `distributed_type` says which engine; `num_processes` counts the processes of all machines together; `mixed_precision` is a default for the script. Section 8.2.3 lists more keys: `machine_rank`, `main_process_ip`, `main_process_port`, `rdzv_backend` and `same_network` matter for several machines, `gpu_ids` picks GPUs, `downcast_bf16` is for TPUs. Three files:

# %% [markdown] lang="zh" of="c8d55f2e"
# ## 配置文件
#
# `accelerate config` 一问一答，把答案写进一个 YAML 文件；用任何编辑器写也一样。`distributed_type` 说用哪种引擎，`num_processes` 是所有机器上进程的总数，`mixed_precision` 是脚本的默认精度。8.2.3 节还列了别的键：`machine_rank`、`main_process_ip`、`main_process_port`、`rdzv_backend`、`same_network` 用于多机，`gpu_ids` 挑选 GPU，`downcast_bf16` 只对 TPU 有意义。写三个文件：

# %%
COMMON = "compute_environment: LOCAL_MACHINE\nnum_machines: 1\nnum_processes: 2\n"
CONFIGS = {
    "bf16": "distributed_type: MULTI_GPU\nmixed_precision: bf16\n",
    "fsdp": "distributed_type: FSDP\nmixed_precision: 'no'\nfsdp_config:\n  fsdp_version: 2\n"
    "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_transformer_layer_cls_to_wrap: Block\n"
    "  fsdp_cpu_ram_efficient_loading: false\n",
    "zero2": "distributed_type: DEEPSPEED\nmixed_precision: 'no'\ndeepspeed_config:\n  zero_stage: 2\n"
    "  gradient_clipping: 1.0\n",
}
for name, text in CONFIGS.items():
    Path(folder.name, f"{name}.yaml").write_text(COMMON + text)
print(Path(folder.name, "fsdp.yaml").read_text())

# %% [markdown]
# Read back by Accelerate's own reader, with four variants that look harmless:

# %% [markdown] lang="zh" of="7211db7d"
# 用 Accelerate 自己的读取函数读回来，外加四个看似无害的变体：

# %%
from accelerate.commands.config import load_config_from_file

VARIANTS = {
    "as written": "",
    "one key more": "gradient_accumulation_steps: 4\n",
    "MULTI-GPU": "distributed_type: MULTI-GPU\n",
    "no": "mixed_precision: no\n",
    "'no'": "mixed_precision: 'no'\n",
}
for name, more in VARIANTS.items():
    variant = Path(folder.name, "variant.yaml")
    variant.write_text(COMMON + CONFIGS["bf16"] + more)  # a key given twice: the later one counts
    try:
        config = load_config_from_file(str(variant))
        print(
            f"{name:13} {config.distributed_type.value}, mixed_precision {config.mixed_precision!r}"
        )
    except ValueError as error:
        print(
            f"{name:13} ValueError: {str(error).partition(' had ')[2].partition(', please')[0] or error}"
        )

# %% [markdown]
# A key that the file does not know is refused: accumulation is no top-level key. And `no` without quotes is YAML's word for False, not the string that `mixed_precision` needs: the file is read without complaint.
#
# What does `accelerate launch` do with a file? It turns it into environment variables and starts the script under torch's own launcher. The function below asks the launcher's own code for those variables:

# %% [markdown] lang="zh" of="e4d82888"
# 不认识的键会被拒绝：累积步数不是顶层的键。不加引号的 `no` 在 YAML 里是 False，而不是 `mixed_precision` 需要的字符串：读文件时并不报错。
#
# `accelerate launch` 拿到文件后做什么？把它变成环境变量，再用 torch 自己的启动器启动脚本。下面的函数就向启动器自己的代码要这些变量：

# %%
from accelerate.commands import launch
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env


def handed_over(name, *flags):
    """What `accelerate launch --config_file name.yaml ... train.py` puts into the environment of each rank."""
    line = [
        "--config_file",
        f"{folder.name}/{name}.yaml",
        "--main_process_port",
        "0",
        *flags,
        "train.py",
    ]
    args, defaults, _ = launch._validate_launch_command(
        launch.launch_command_parser().parse_args(line)
    )
    args.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
    given = (
        prepare_deepspeed_cmd_env(args)[1] if args.use_deepspeed else prepare_multi_gpu_env(args)
    )
    return {key: value for key, value in given.items() if key.startswith(("ACCELERATE_", "FSDP_"))}


quiet = ("DYNAMO", "false", "CONFIG_DS")
for name, flags in (
    ("bf16", ()),
    ("bf16", ("--mixed_precision", "no")),
    ("fsdp", ()),
    ("zero2", ()),
):
    given = [f"   {key}={value}" for key, value in handed_over(name, *flags).items()]
    print(
        " ".join((name, *flags)),
        *(each for each in given if not any(word in each for word in quiet)),
        sep="\n",
    )

# %%
variant.write_text(COMMON + CONFIGS["bf16"] + VARIANTS["no"])
try:
    handed_over("variant")
except AttributeError as error:
    print("no without quotes: AttributeError:", error)

# %% [markdown]
# A flag counts for more than the file. The script never sees the file; it sees variables, and `Accelerator()` reads them.
#
# Now the real command. Without GPUs one more variable is needed, `ACCELERATE_USE_CPU`; `launch_script` sets and shows it. It takes several seconds, most of them imports, in the launcher and again in each rank. So it runs beside the next cells, and we look at it when it is done:

# %% [markdown] lang="zh" of="0a096319"
# 命令行的选项优先于文件。脚本从不看文件，它看到的是环境变量，由 `Accelerator()` 读取。
#
# 现在运行真正的命令。没有 GPU 时还要一个变量 `ACCELERATE_USE_CPU`，`launch_script` 会设好并显示出来。它要好几秒，大多花在 import 上，启动器里一次，每个 rank 里再一次。所以让它在后台跑，等它跑完再看：

# %%
from concurrent.futures import ThreadPoolExecutor

command = ThreadPoolExecutor().submit(
    lab.launch_script,
    script,
    "4",
    ranks=2,
    using="accelerate",
    config=f"{folder.name}/bf16.yaml",
    timeout_s=55,
)

# %% [markdown] sections="8.2.1, 8.2.2"
# ## Six ways
#
# From here on ranks start in the notebook, in a fraction of a second. (The first runs take longer: they share the cores with the command.) Each runs the same file with the variables that `accelerate launch` would have set. Without GPUs, Accelerate 1.15 needs a push: it uses FSDP only where it has found GPUs, and starts DeepSpeed in the belief that there is one process. So for these two it is told that it has found some (the lines with `engine`; with GPUs leave them out).

# %% [markdown] lang="zh" of="2f1e5637"
# ## 六种方式
#
# 从这里起，rank 由笔记本启动，只要零点几秒。（头几次运行会久一些：它们与那条命令共用处理器的核。）每个 rank 运行同一个文件，环境变量就是 `accelerate launch` 会设的那些。没有 GPU 时，Accelerate 1.15 要推一把：FSDP 它只在找到 GPU 时才用，启动 DeepSpeed 时又以为只有一个进程。所以对这两种，要告诉它“找到了”（带 `engine` 的那几行；有 GPU 时不用写）。


# %%
def run_as(path, batch_size, environment, alone=False):
    import os, runpy, sys, torch
    from accelerate import DistributedType, PartialState

    torch.set_num_threads(1)  # what `accelerate launch` asks for, by OMP_NUM_THREADS
    sys.argv = [path, str(batch_size)]
    os.environ.update(environment)
    if alone:  # as `python train.py` starts it: it is told nothing of ranks
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            os.environ.pop(name, None)
    engine = environment.keys() & {"ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"}
    if engine and "ACCELERATE_USE_CPU" not in environment:
        PartialState(cpu=True).distributed_type = DistributedType.MULTI_GPU
    names = runpy.run_path(path)
    accelerator, net, optimizer = (names[name] for name in ("accelerator", "net", "optimizer"))
    weights = accelerator.get_state_dict(net)
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    steps = {int(state["step"]) for state in optimizer.state.values()}
    return {
        "type": accelerator.distributed_type.value,
        "net": type(net).__name__,
        "batches": len(names["loader"]),
        "updates": max(steps),
        "weights": weights,
        "loss": names["loss"].item(),
        "size": accelerator.num_processes,
    }


# %% [markdown]
# One process and five others. The batch size is a rank's own; it is chosen so that every update takes 8 passages: 8 in one process, 2 on each of four ranks, and so on. **Predict**: how many updates has the epoch of 64 passages in each way, and which weights equal those of the one process, up to rounding?

# %% [markdown] lang="zh" of="90e48a69"
# 单进程，以及另外五种。批大小是每个 rank 自己的；这里把它选得让每次更新都用 8 段文本：单进程一次 8 段，四个 rank 各 2 段，等等。**先猜**：64 段文本的一个 epoch，各有几次更新？哪些方式的权重与单进程相同（只差舍入）？

# %%
my_updates, my_equal_ways = None, None

# %%
CPU = {"ACCELERATE_USE_CPU": "true"}
WAYS = {  # ranks, batch size, variables
    "one process": (1, 8, CPU),
    "four ranks": (4, 2, CPU),
    "accumulation": (2, 2, CPU | {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2"}),
    "bf16": (2, 4, CPU | handed_over("bf16")),
    "FSDP": (2, 4, handed_over("fsdp")),
    "DeepSpeed": (2, 4, handed_over("zero2")),
}
runs = {
    name: lab.launch(
        run_as, str(script), size, given, ranks == 1, ranks=ranks, backend="gloo", timeout_s=50
    )
    for name, (ranks, size, given) in WAYS.items()
}
reference = runs["one process"][0]["weights"]

# %%
print(
    f"{my_updates = }; {my_equal_ways = }\n{'':14}{'type':12}{'net':26}batches  updates  from one process"
)
for name, (run, *_) in runs.items():
    far = difference(run["weights"], reference)
    print(
        f"{name:14}{run['type']:12}{run['net']:26}{run['batches']:7}  {run['updates']:7}  {far:16.1e}"
    )

# %% [markdown]
# The same file each time. Four ranks, accumulation, FSDP and DeepSpeed train the model that one process trains; bf16 computes with 8 bits of mantissa, and is off by more.
#
# And the real command? `result()` waits for it, if it still runs. The last loss of each rank, beside that of the way "bf16" above, which had the same variables and the same batch size:

# %% [markdown] lang="zh" of="f72c28f2"
# 每次都是同一个文件。四个 rank、累积、FSDP、DeepSpeed 训练出的模型与单进程相同；bf16 的尾数只有 8 位，差得更多。
#
# 真正的命令呢？要是还没跑完，`result()` 会等它。下面是它每个 rank 的最后一个损失，旁边是上面 bf16 那种方式的，变量和批大小都相同：

# %%
launched = command.result()
for rank, log in enumerate(launched.logs):
    print(
        "accelerate launch:", log.strip(), "  in the notebook:", f"{runs['bf16'][rank]['loss']:.6f}"
    )

# %% [markdown]
# ### What the promise does not cover
#
# Section 8.2.2 calls the loop "identical to a single GPU's". The code is. But keep the batch size of 8 as well, start four ranks, and every update takes 32 passages: a quarter of the updates, another model. Or start two ranks on a machine without GPUs, but forget `ACCELERATE_USE_CPU`. Or do not forget it, and ask for FSDP or DeepSpeed:

# %% [markdown] lang="zh" of="69c59bc2"
# ### 承诺之外的事
#
# 8.2.2 节说训练循环“与单 GPU 完全相同”。代码确实相同。可是批大小也照旧用 8，启动四个 rank，每次更新就用了 32 段文本：更新次数只剩四分之一，得到的是另一个模型。又比如：在没有 GPU 的机器上启动两个 rank，却忘了 `ACCELERATE_USE_CPU`。或者没忘，但要的是 FSDP 或 DeepSpeed：

# %%
TRAPS = {
    "batch size 8 on four ranks": (4, 8, CPU),
    "no GPU, no variable": (2, 4, {}),
    "FSDP's file, the variable": (2, 4, CPU | handed_over("fsdp")),
    "DeepSpeed's, the variable": (2, 4, CPU | handed_over("zero2")),
}
for name, (ranks, size, given) in TRAPS.items():
    run = lab.launch(run_as, str(script), size, given, ranks=ranks, backend="gloo", timeout_s=40)
    far = difference(run[0]["weights"], reference)
    print(
        f"{name:27} {run[0]['type']:10} {run[0]['net']:24} {run[0]['updates']:2} updates, {far:.1e} from one process; "
        f"num_processes {[each['size'] for each in run]}"
    )

# %% [markdown]
# In the second, each rank believes that it is alone (where Accelerate finds GPUs, it takes them and counts them). Nothing is averaged: the job costs twice as much and trains the same model two times. In the last two the type says it: plain DDP, whatever the file asked for. No warning in any of them. Print `accelerator.state` at the start of a script and read it.

# %% [markdown] lang="zh" of="9dd02570"
# 第二种情形里，每个 rank 都以为只有自己（找到 GPU 时，Accelerate 会用上它们，也数得对）。什么都没有平均：花了两倍的钱，把同一个模型训练了两遍。后两种看类型就知道：不管文件要什么，用的都是普通的 DDP。哪一种都没有警告。所以脚本开头要打印 `accelerator.state`，并且看一眼。

# %% [markdown]
# One more. What the script passes to `Accelerator(...)` and what the launcher sets may differ. **Predict** who wins:

# %% [markdown] lang="zh" of="031ab3ba"
# 还有一处。脚本传给 `Accelerator(...)` 的，与启动器设的，可能不一样。**先猜**谁说了算：

# %%
my_winners = {"mixed_precision": None, "gradient_accumulation_steps": None}


# %%
def who_wins():
    import os
    from accelerate import Accelerator

    os.environ |= {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2",
    }
    accelerator = Accelerator(cpu=True, mixed_precision="no", gradient_accumulation_steps=4)
    return accelerator.mixed_precision, accelerator.gradient_accumulation_steps


print(
    f'{my_winners = }\nthe launcher says ("bf16", 2), the script ("no", 4):',
    lab.launch(who_wins, ranks=1, backend="gloo", timeout_s=40)[0],
)

# %% [markdown]
# The script for the precision, the launcher for the accumulation. Say each in one place only.

# %% [markdown] lang="zh" of="acbae72e"
# 精度听脚本的，累积步数听启动器的。所以每一样只在一处写。

# %% [markdown] sections="8.2.2"
# ## What prepare changed
#
# `accelerator.prepare` returns other objects than it was given. The same model, optimizer and loader before and after, on rank 0 of two, with `mixed_precision="bf16"`; "inside" is what a block computes in:

# %% [markdown] lang="zh" of="0abe2342"
# ## prepare 改了什么
#
# `accelerator.prepare` 交还的不是你给它的那些对象。下面是同样的模型、优化器和加载器在前后的样子，取两个 rank 中的 rank 0，`mixed_precision="bf16"`；inside 一行是层内计算所用的类型：

# %%
found = {
    engine: lab.launch(accelerated.step, engine, "bf16", ranks=2, backend="gloo", timeout_s=40)[0]
    for engine in ("ddp", "fsdp", "zero2")
}
print(f"{'':14}{'before':26}" + "".join(f"{engine:28}" for engine in found))
for row, before in found["ddp"]["before"].items():
    print(
        f"{row:14}{before:26}" + "".join(f"{result['after'][row]:28}" for result in found.values())
    )

# %% [markdown]
# The model is wrapped (DDP, DeepSpeed) or its weights are cut (FSDP: a `DTensor`, half of the elements here). The loader deals batches out, so it is half as long. On GPUs the batches and the model would also have moved: `batch on`.
#
# "Mixed precision" is three things. With DDP the weights stay in fp32, `autocast` computes in bf16, and the output is turned back into fp32. FSDP keeps its shards in fp32 and gathers, computes and returns bf16. DeepSpeed keeps bf16 weights, and an fp32 copy in its optimizer. What is sent differs, too. **Predict** for DDP and FSDP: is the payload of a rank in bf16 half of that in fp32?

# %% [markdown] lang="zh" of="2ca69df4"
# 模型被包了起来（DDP、DeepSpeed），或者权重被切开（FSDP：`DTensor`，这里只有一半元素）。加载器把批次分给各 rank，所以长度减半。有 GPU 时，批次和模型还会搬到 GPU 上，即 `batch on` 一行。
#
# “混合精度”（mixed precision）其实有三种。DDP：权重仍是 fp32，由 `autocast` 用 bf16 计算，输出再转回 fp32。FSDP：自己的片存 fp32，收齐、计算、返回都用 bf16。DeepSpeed：权重是 bf16，优化器里另有一份 fp32。发送的量也不同。**先猜**：对 DDP 和 FSDP，bf16 时一个 rank 交给集合通信的字节是不是 fp32 时的一半？

# %%
my_halves = {"ddp": None, "fsdp": None}


# %%
def payload(result):
    return sum(
        sum(line["payload_bytes"].values()) for batch in result["lines"] for line in batch.values()
    )


print(f"{my_halves = }\nbytes of an update{'no':>12}{'bf16':>12}")
for engine in my_halves:
    full = lab.launch(accelerated.step, engine, "no", ranks=2, backend="gloo", timeout_s=40)[0]
    print(f"{engine:18}{payload(full):12,}{payload(found[engine]):12,}")
fp16 = lab.launch(accelerated.step, "ddp", "fp16", ranks=2, backend="gloo", timeout_s=40)[0]
print(f'mixed_precision="fp16" on the CPU: a block computes in {fp16["after"]["inside"]}')

# %% [markdown]
# With DDP the gradients stay fp32, and so do the messages: mixed precision there saves compute and activations, not communication. FSDP gathers and reduces in bf16. And `--mixed_precision fp16`, the flag of section 8.2.2, does nothing at all on a CPU, without a word. On a GPU it adds a `GradScaler` (chapter 05).
#
# ### Which samples a rank gets
#
# Four ranks, batches of 2, samples 0 to 9. **Predict**: how many samples do the four ranks work through in an epoch?

# %% [markdown] lang="zh" of="285b5948"
# DDP 的梯度仍是 fp32，消息也就一样大：混合精度在那里省的是计算和激活，不是通信。FSDP 则用 bf16 收齐和归约。而 8.2.2 节的 `--mixed_precision fp16` 在 CPU 上什么也不做，也不提醒一声。在 GPU 上，它会加上 `GradScaler`（第 05 章）。
#
# ### 每个 rank 拿到哪些样本
#
# 四个 rank，每批 2 个，样本编号 0 到 9。**先猜**：一个 epoch 里，四个 rank 一共要算多少个样本？

# %%
my_samples = None


# %%
def deal(num_samples, num_epochs=1, batch_size=2, shuffle=False, options=None):
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration
    from torch.utils.data import DataLoader

    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(**(options or {}))
    )
    loader = accelerator.prepare(
        DataLoader(range(num_samples), batch_size=batch_size, shuffle=shuffle)
    )
    return [[batch.tolist() for batch in loader] for _ in range(num_epochs)]


print(f"{my_samples = }")
for size, options in ((2, {}), (2, {"even_batches": False}), (8, {"split_batches": True})):
    dealt = [
        each[0]
        for each in lab.launch(
            deal, 10, 1, size, False, options, ranks=4, backend="gloo", timeout_s=40
        )
    ]
    print(
        f"batch size {size}, {options}: {sum(len(batch) for batches in dealt for batch in batches)} samples"
    )
    print(*(f"   rank {rank}: {batches}" for rank, batches in enumerate(dealt)), sep="\n")

# %% [markdown]
# Batches are dealt out like cards, rank 0 the first. What is missing at the end is filled up with the first samples, so that all ranks do equally many steps: an epoch of 10 samples has 16. Without that (`even_batches=False`) ranks do unlike numbers of steps, and training needs `accelerator.join_uneven_inputs`, or one waits for another that has finished. With `split_batches=True` the batch size is that of all ranks together: then the number of updates no longer depends on the ranks.
#
# With `shuffle=True` all ranks shuffle alike. Rank 0 sends its generator's state around at the start of every epoch:

# %% [markdown] lang="zh" of="5f860eef"
# 批次像发牌一样分出去，从 rank 0 开始。末尾缺的用最前面的样本补上，好让各 rank 的步数相同：10 个样本的 epoch 实际算了 16 个。不补（`even_batches=False`），各 rank 的步数就不同，训练时要用 `accelerator.join_uneven_inputs`，否则会有 rank 一直等着已经结束的那个。`split_batches=True` 时，批大小是所有 rank 合起来的：更新次数不再随 rank 数变化。
#
# `shuffle=True` 时，各 rank 洗出同样的牌。每个 epoch 开始时，rank 0 会把自己随机数生成器的状态发给大家：

# %%
dealt = lab.launch(deal, 16, 2, 2, True, ranks=4, backend="gloo", timeout_s=40)
for epoch in range(2):
    order = [sample for step in range(2) for rank in dealt for sample in rank[epoch][step]]
    print(f"epoch {epoch}: {order}, each once: {sorted(order) == list(range(16))}")

# %% [markdown] sections="8.2.4"
# ## backward, accumulate, clip, step
#
# The board shows what each line of the loop does in one update: choose the engine, the precision, the number of batches per update, and press the button. Before a run it predicts; afterwards each cell has both numbers. Here it has been run for DDP with two batches per update.

# %% [markdown] lang="zh" of="d807ecf9"
# ## backward、accumulate、裁剪与 step
#
# 下面的面板展示一次更新里循环的每一行各做了什么：选引擎、精度、每次更新的批次数，再按按钮。运行之前是预测，运行之后每一格有两个数。这里已经用 DDP、每次更新两个批次运行过一次。

# %%
board = widgets.accelerate_workflow(language=LANGUAGE, engine="ddp", accumulation=2)
board.run()
board

# %% [markdown]
# Section 8.2.2 says that `accelerator.backward` synchronises the gradients. With DDP it does not: DDP's own hooks do. What `accelerator.backward` adds is a division by the number of accumulated batches, and fp16's scaling. Two ranks, `gradient_accumulation_steps=4`, one batch:

# %% [markdown] lang="zh" of="1b440a44"
# 8.2.2 节说 `accelerator.backward` 会自动同步梯度。用 DDP 时并非如此：同步的是 DDP 自己的钩子。`accelerator.backward` 加的是除以累积的批次数，以及 fp16 的缩放。两个 rank，`gradient_accumulation_steps=4`，一个批次：


# %%
def two_backwards():
    from accelerate import Accelerator
    from labkit import model
    from labkit.measure import traffic

    accelerator, found = Accelerator(cpu=True, gradient_accumulation_steps=4), {}
    net = accelerator.prepare(model.Transformer(2, 32, 2, max_len=32))
    tokens, targets = model.story_tokens(2, 32, seed=accelerator.process_index)
    for name in ("loss.backward()", "accelerator.backward(loss)"):
        net.zero_grad()
        loss = model.loss(net(tokens), targets)
        with traffic.count() as counted:
            loss.backward() if name == "loss.backward()" else accelerator.backward(loss)
        norm = sum(weight.grad.square().sum() for weight in net.parameters()).sqrt().item()
        found[name] = dict(counted.calls), norm
    return found


for name, (calls, norm) in lab.launch(two_backwards, ranks=2, backend="gloo", timeout_s=40)[
    0
].items():
    print(f"{name:27} {calls}, gradient norm {norm:.4f}")

# %% [markdown]
# With DeepSpeed the difference is larger: `accelerator.backward` makes the whole update, and `optimizer.step()` does nothing (choose DeepSpeed on the board). So a loop that is to run on every engine calls `accelerator.backward`.
#
# ### When the batches do not divide
#
# `accumulate` also makes an update at the end of the loader, however few batches are left. The loss below has gradient 1 in every batch, the learning rate is 1; there are 6 batches and 4 are accumulated. The first update moves the weight by 1. **Predict** the second:

# %% [markdown] lang="zh" of="5aee3ecf"
# 用 DeepSpeed 时差别更大：`accelerator.backward` 做完了整个更新，`optimizer.step()` 什么也不做（在面板上选 DeepSpeed 看看）。所以想在各种引擎上都能跑的循环，要调用 `accelerator.backward`。
#
# ### 批次除不尽时
#
# 加载器到头时，不管还剩几个批次，`accumulate` 都会做一次更新。下面的损失在每个批次里梯度都是 1，学习率也是 1；共 6 个批次，每 4 个更新一次。第一次更新让权重移动 1。**先猜**第二次移动多少：

# %%
my_second_move = None


# %%
def moves(num_batches, accumulation):
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    net = torch.nn.Linear(1, 1, bias=False)
    loader = DataLoader(torch.ones(num_batches * accelerator.num_processes, 1))
    net, optimizer, loader = accelerator.prepare(
        net, torch.optim.SGD(net.parameters(), lr=1.0), loader
    )
    places = [next(net.parameters()).item()]
    for inputs in loader:
        with accelerator.accumulate(net):
            accelerator.backward(net(inputs).mean())
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            places.append(next(net.parameters()).item())
    return [before - after for before, after in zip(places, places[1:])]


print(
    f"{my_second_move = }; moves:",
    lab.launch(moves, 6, 4, ranks=2, backend="gloo", timeout_s=40)[0],
)

# %% [markdown]
# Two batches, divided by four: the last update of an epoch is too small. Let the loader's length divide, or drop the rest (`drop_last=True`).
#
# ### Clip once, when the gradient is complete
#
# Section 8.2.4 clips under `if accelerator.sync_gradients`. Why? And does it clip with every engine? One update with SGD and learning rate 1, so that the weights move by the clipped gradient; two accumulated batches, two ranks, `max_norm` 0.01. **Predict** which moves are 0.01 long.

# %% [markdown] lang="zh" of="a34e4176"
# 两个批次，却除以四：每个 epoch 的最后一次更新偏小。让加载器的长度除得尽，或者丢掉余数（`drop_last=True`）。
#
# ### 梯度齐了再裁剪，只裁一次
#
# 8.2.4 节把裁剪放在 `if accelerator.sync_gradients` 之下。为什么？对每种引擎都真的裁剪了吗？用学习率为 1 的 SGD 做一次更新，权重移动的正是裁剪后的梯度；累积两个批次，两个 rank，`max_norm` 取 0.01。**先猜**：哪几种移动的长度是 0.01？

# %%
my_clipped = {
    "ddp": None,
    "ddp, no if": None,
    "fsdp": None,
    "zero2": None,
    "zero2, in the file": None,
}


# %%
def clipped_move(engine, in_file=False, guard=True):
    import torch
    from labkit import accelerate as accelerated, model
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = accelerated.accelerator(
        engine, accumulation=2, max_norm=0.01 if in_file else None
    )
    torch.manual_seed(0)
    net = model.Transformer(2, 32, 2, max_len=32)
    start = {name: weight.clone() for name, weight in net.state_dict().items()}
    net, optimizer, loader = accelerator.prepare(
        net,
        torch.optim.SGD(net.parameters(), lr=1.0),
        DataLoader(TensorDataset(*model.story_tokens(8, 32)), batch_size=2),
    )
    for tokens, targets in loader:
        with accelerator.accumulate(net):
            accelerator.backward(model.loss(net(tokens), targets))
            if accelerator.sync_gradients or not guard:
                accelerator.clip_grad_norm_(net.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()
    weights = accelerator.get_state_dict(net)
    return {name: weights[name] - start[name] for name in weights}


# %%
CASES = {
    "ddp": ("ddp",),
    "ddp, no if": ("ddp", False, False),
    "fsdp": ("fsdp",),
    "zero2": ("zero2",),
    "zero2, in the file": ("zero2", True),
}
made = {
    name: lab.launch(clipped_move, *case, ranks=2, backend="gloo", timeout_s=40)[0]
    for name, case in CASES.items()
}
print(f"{my_clipped = }")
for name, move in made.items():
    length, apart = (
        sum(each.square().sum() for each in tensors).sqrt().item()
        for tensors in (move.values(), [move[key] - made["ddp"][key] for key in move])
    )
    print(f"{name:19} moved by {length:.4f}, {apart:.4f} away from the first")

# %% [markdown]
# Without the `if`, the first batch's gradient is cut to 0.01 before the second, uncut one is added: the length is right and the direction is not. With DeepSpeed `accelerator.clip_grad_norm_` only reads the norm. It clips if its configuration says so (`gradient_clipping`), at the number that stands there, whatever the script says.

# %% [markdown] lang="zh" of="5b9f36ff"
# 没有那个 `if`，第一个批次的梯度先被裁到 0.01，再加上没裁过的第二个：长度对了，方向错了。用 DeepSpeed 时，`accelerator.clip_grad_norm_` 只是读出范数。只有配置里写了 `gradient_clipping` 才会裁剪，按配置里的数裁，不管脚本怎么写。

# %% [markdown] sections="8.2.4"
# ## gather, and the main process
#
# Section 8.2.4 prints the loss under `if accelerator.is_main_process`. That is rank 0's loss, not the mean; the mean needs all ranks. `accelerator.print` prints on the main process only. Four ranks:

# %% [markdown] lang="zh" of="da1f96cc"
# ## gather 与主进程
#
# 8.2.4 节在 `if accelerator.is_main_process` 之下打印损失。那只是 rank 0 的损失，不是平均值；平均值要所有 rank 一起算。`accelerator.print` 只在主进程打印。四个 rank：


# %%
def report():
    from accelerate import Accelerator
    from labkit import model

    accelerator = Accelerator(cpu=True)
    net = accelerator.prepare(model.Transformer(2, 32, 2, max_len=32))
    tokens, targets = model.story_tokens(2, 32, seed=accelerator.process_index)
    loss = model.loss(net(tokens), targets).detach()
    every = accelerator.gather(loss)  # a collective: all ranks call it
    mean = accelerator.reduce(loss, "mean")
    accelerator.print(f"mine {loss:.4f}, mean of gather {every.mean():.4f}, reduce {mean:.4f}")
    return accelerator.is_main_process, loss.item()


run = lab.launch(report, ranks=4, backend="gloo", timeout_s=40)
for rank, (main, loss) in enumerate(run):
    print(
        f"rank {rank}, main process: {main}, loss {loss:.4f}, printed: {run.logs[rank].strip()!r}"
    )

# %% [markdown]
# The most frequent mistake is a collective that only the main process calls. The others go on, and it waits:

# %% [markdown] lang="zh" of="1ebbb37d"
# 最常见的错误，是只有主进程调用集合通信。别的 rank 走开了，它一直等：


# %%
def only_the_main_one():
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    if accelerator.is_main_process:
        print("mean", accelerator.gather(torch.ones(1)).mean())


try:
    lab.launch(only_the_main_one, ranks=2, backend="gloo", hang_s=1.0, timeout_s=40)
except lab.Deadlock as error:
    print(str(error)[:400])

# %% [markdown]
# ### A metric over a padded loader
#
# A classifier gets the first 6 of 10 samples right. Four ranks, batches of 2. `gather` collects all that the ranks have seen, `gather_for_metrics` drops what the loader has added. **Predict** the accuracy by either:

# %% [markdown] lang="zh" of="8b1f72b2"
# ### 补齐过的加载器与指标
#
# 一个分类器在 10 个样本里答对前 6 个。四个 rank，每批 2 个。`gather` 收集各 rank 看到的全部，`gather_for_metrics` 会丢掉加载器补上的。**先猜**两种做法各得多少准确率：

# %%
my_accuracies = {"gather": None, "gather_for_metrics": None}


# %%
def accuracy(name):
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(range(10), batch_size=2))
    hits = torch.cat([getattr(accelerator, name)(samples < 6) for samples in loader])
    return f"{int(hits.sum())} of {len(hits)} = {hits.float().mean().item():.2f}"


print(f"{my_accuracies = }")
for name in my_accuracies:
    print(f"{name:20}", lab.launch(accuracy, name, ranks=4, backend="gloo", timeout_s=40)[0])

# %% [markdown] sections="8.2.2"
# ## Saving
#
# Section 8.2.2 unwraps the model and saves it, on every process. With FSDP or ZeRO-3 the unwrapped model has only a part of each weight, or nothing. `accelerator.get_state_dict` gathers. Below, the elements that each of two ranks holds, the first word of their names, and their type:

# %% [markdown] lang="zh" of="3dd3bbe2"
# ## 保存
#
# 8.2.2 节在每个进程上拆开模型的包装再保存。用 FSDP 或 ZeRO-3 时，拆开的模型里每个权重只有一片，甚至什么也没有。`accelerator.get_state_dict` 会收齐。下面是两个 rank 各自手里的元素个数、名字的第一个词，以及类型：


# %%
def elements(engine):
    import torch
    from labkit import accelerate as accelerated, model
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = accelerated.accelerator(engine, precision="bf16")
    net = model.Transformer(2, 32, 2, max_len=32)
    loader = DataLoader(TensorDataset(*model.story_tokens(8, 32)), batch_size=2)
    net, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters()), loader)
    found = (
        net.state_dict(),
        accelerator.unwrap_model(net).state_dict(),
        accelerator.get_state_dict(net),
    )
    told = []
    for weights in found:
        sizes = [getattr(each, "_local_tensor", each).numel() for each in (weights or {}).values()]
        first = next(iter((weights or {"nothing": None}).items()))
        told.append(
            f"{sum(sizes):6,} {first[0].split('.')[0]} {str(getattr(first[1], 'dtype', ''))[6:]}"
        )
    return told


# %%
print(f"{'':8}{'net.state_dict()':26}{'unwrap_model(net)...':26}get_state_dict(net)")
for engine in ("ddp", "fsdp", "zero3"):
    for rank, told in enumerate(
        lab.launch(elements, engine, ranks=2, backend="gloo", timeout_s=40)
    ):
        print(f"{engine:6}{rank} " + "".join(f"{each:26}" for each in told))

# %% [markdown]
# So the pattern for every engine is: `weights = accelerator.get_state_dict(net)` on all ranks, for it is a collective; then `accelerator.save(weights, path)`, which writes on the main process only. FSDP and ZeRO-3 give the whole weights to rank 0 alone. DeepSpeed hands out its 16-bit weights; its fp32 copy stays in its own checkpoint.
#
# The other ranks do not wait for the one that writes, unless they are told to. Below the disk of the main process is slow; then each rank looks for the file:

# %% [markdown] lang="zh" of="bfd7fba4"
# 所以对各种引擎都适用的写法是：在所有 rank 上调用 `weights = accelerator.get_state_dict(net)`，因为它是集合通信；然后 `accelerator.save(weights, path)`，它只在主进程写。FSDP 和 ZeRO-3 只把完整的权重给 rank 0。DeepSpeed 交出的是 16 位的权重，fp32 那份留在它自己的检查点里。
#
# 别的 rank 不会等那个正在写的，除非让它们等。下面主进程的磁盘很慢；写完后每个 rank 都去找这个文件：


# %%
def write_and_look(path, wait):
    import time
    from pathlib import Path
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    if accelerator.is_main_process:
        time.sleep(0.3)  # a slow disk
    accelerator.save({"step": 5}, path)  # the main process only
    if wait:
        accelerator.wait_for_everyone()
    return Path(path).exists()


for wait in (False, True):
    seen = lab.launch(
        write_and_look, f"{folder.name}/{wait}.bin", wait, ranks=3, backend="gloo", timeout_s=40
    )
    print(f"wait_for_everyone {wait!s:5}: the file is there for rank 0, 1, 2: {list(seen)}")

# %% [markdown]
# `save_state` saves what is needed to go on: weights, optimizer, random generators. It is called on all ranks. Eight batches in one go, and five, save, a new process, load, three more:

# %% [markdown] lang="zh" of="b3106994"
# `save_state` 保存继续训练所需的一切：权重、优化器、随机数生成器。所有 rank 都要调用。一次训练八个批次；另一次训练五个，保存，换新的进程，载入，再训练三个：


# %%
def train_some(first, last, load_from=None, save_to=None):
    import torch
    from accelerate import Accelerator
    from labkit import model
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    net = model.Transformer(2, 32, 2, max_len=32)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(*model.story_tokens(32, 32)), batch_size=2)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    if load_from:
        accelerator.load_state(load_from)
    for index, (tokens, targets) in enumerate(
        accelerator.skip_first_batches(loader, first), start=first
    ):
        if index == last:
            break
        accelerator.backward(model.loss(net(tokens), targets))
        optimizer.step()
        optimizer.zero_grad()
    if save_to:
        accelerator.save_state(save_to)
    return accelerator.get_state_dict(net)


# %%
place = f"{folder.name}/checkpoint"
straight = lab.launch(train_some, 0, 8, ranks=2, backend="gloo", timeout_s=40)
lab.launch(train_some, 0, 5, None, place, ranks=2, backend="gloo", timeout_s=40)
resumed = lab.launch(train_some, 5, 8, place, ranks=2, backend="gloo", timeout_s=40)
print(
    *(f"{path.name}: {path.stat().st_size:,} bytes" for path in sorted(Path(place).iterdir())),
    sep="\n",
)
print(f"the resumed run is off by {difference(resumed[0], straight[0]):g}")

# %% [markdown]
# Not a bit. The place in the loader is the script's own business: `skip_first_batches`. Chapter 13 saves while ranks fail.
#
# ## Exercises
#
# A check never stops the notebook. It tries your answer on real ranks, at sizes that are not shown, against one process.
#
# ### 1. Make it an Accelerate loop
#
# Below is plain PyTorch. Turn it into a loop that trains on every engine: one process, DDP, FSDP, DeepSpeed. The arguments are an Accelerator and plain objects. Return the whole weights under the names of the bare model; what ranks other than the main one return does not matter.

# %% [markdown] lang="zh" of="b9b7d561"
# 一比特也不差。读到加载器的哪里，由脚本自己记住：`skip_first_batches`。第 13 章会在 rank 出故障时保存和恢复。
#
# ## 练习
#
# 检查不会中断笔记本。它在真实的 rank 上用没有展示过的规模试你的答案，并与单进程比较。
#
# ### 1. 改成 Accelerate 的循环
#
# 下面是普通的 PyTorch。把它改成各种引擎上都能训练的循环：单进程、DDP、FSDP、DeepSpeed。参数是一个 Accelerator 和几个普通对象。返回完整的权重，名字与裸模型的相同；主进程以外的 rank 返回什么都可以。


# %%
def plain_epoch(net, optimizer, loader):
    for tokens, targets in loader:
        loss = model.loss(net(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return net.state_dict()


def my_epoch(accelerator, net, optimizer, loader):
    """Trains one epoch; returns the whole weights on the main process."""
    ### BEGIN SOLUTION
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for tokens, targets in loader:
        accelerator.backward(model.loss(net(tokens), targets))
        optimizer.step()
        optimizer.zero_grad()
    return accelerator.get_state_dict(net)
    ### END SOLUTION


# %%
check.one_epoch(my_epoch)

# %%
check.hint("one_epoch")

# %% [markdown]
# ### 2. Accumulate and clip
#
# All objects are prepared. Make one update per `accelerator.gradient_accumulation_steps` batches, with the gradient of the mean over all of them and all ranks, clipped to `max_norm`. The number of batches divides. At most one all-reduce per update.

# %% [markdown] lang="zh" of="d998e7db"
# ### 2. 累积并裁剪
#
# 各对象都已经过 `prepare`。每 `accelerator.gradient_accumulation_steps` 个批次更新一次，用的是这些批次在所有 rank 上的平均损失的梯度，裁剪到 `max_norm`。批次数除得尽。每次更新最多一次 all-reduce。


# %%
def my_training(accelerator, net, optimizer, loader, max_norm):
    """Trains one epoch on (tokens, targets); the loss is model.loss(net(tokens), targets)."""
    ### BEGIN SOLUTION
    for tokens, targets in loader:
        with accelerator.accumulate(net):
            accelerator.backward(model.loss(net(tokens), targets))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
    ### END SOLUTION


# %%
check.accumulate_and_clip(my_training)

# %%
check.hint("accumulate_and_clip")

# %% [markdown]
# ### 3. An exact accuracy
#
# `net` maps inputs to one score per class; the loader gives (inputs, labels). Return the share of samples whose highest score is their label, each sample of the dataset counted once, as the same number on every rank. A rank may hand at most 24 bytes per sample to collectives.

# %% [markdown] lang="zh" of="badc256e"
# ### 3. 精确的准确率
#
# `net` 给每个类一个分数；加载器给出（输入，标签）。返回最高分恰是标签的样本所占的比例，数据集的每个样本只算一次，各 rank 得到同一个数。一个 rank 交给集合通信的数据，每个样本最多 24 字节。


# %%
def my_accuracy(accelerator, net, loader):
    """The share of samples that net gets right, as a float."""
    ### BEGIN SOLUTION
    hits = [
        accelerator.gather_for_metrics(net(inputs).argmax(-1) == labels)
        for inputs, labels in loader
    ]
    return torch.cat(hits).float().mean().item()
    ### END SOLUTION


# %%
check.exact_accuracy(my_accuracy)

# %%
check.hint("exact_accuracy")

# %% [markdown]
# ## Summary
#
# - `accelerate launch` turns a YAML file and flags into environment variables; `Accelerator()` reads them. The script stays as it is.
# - The batch size is a rank's own. Four times the ranks is four times the batch and a quarter of the updates, unless you change it or use `split_batches`.
# - `prepare` wraps or cuts the model, deals out the batches and fills up the last ones.
# - `accelerator.backward` divides by the accumulated batches; with DeepSpeed it also updates. `accumulate` sends only in the last batch. Clip under `sync_gradients`; DeepSpeed clips by its own configuration.
# - `gather`, `get_state_dict`, `save_state` are collectives: all ranks call them. `gather_for_metrics` forgets what the loader added.
# - Without GPUs: `ACCELERATE_USE_CPU`, or each rank is alone; fp16 and the FSDP and DeepSpeed parts of a file are ignored.
#
# ## Sources
#
# - [Accelerate](https://huggingface.co/docs/accelerate), version 1.15: its documentation, and its source for what is not in there
# - [Gradient accumulation](https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation) and [performance and batch sizes](https://huggingface.co/docs/accelerate/concept_guides/performance)
#
# Where you stand:

# %% [markdown] lang="zh" of="27d9cc57"
# ## 小结
#
# - `accelerate launch` 把 YAML 文件和选项变成环境变量，由 `Accelerator()` 读取。脚本一字不改。
# - 批大小是每个 rank 自己的。rank 数变成四倍，总的批就是四倍，更新次数只剩四分之一，除非你改批大小或用 `split_batches`。
# - `prepare` 包装或切开模型，把批次分给各 rank，并补齐最后的。
# - `accelerator.backward` 会除以累积的批次数；用 DeepSpeed 时还会更新。`accumulate` 只在最后一个批次发送。裁剪要放在 `sync_gradients` 之下；DeepSpeed 按自己的配置裁剪。
# - `gather`、`get_state_dict`、`save_state` 是集合通信，所有 rank 都要调用。`gather_for_metrics` 会去掉加载器补上的。
# - 没有 GPU 时：要设 `ACCELERATE_USE_CPU`，否则每个 rank 各干各的；fp16，以及文件里 FSDP、DeepSpeed 的部分，都会被忽略。
#
# ## 出处
#
# - [Accelerate](https://huggingface.co/docs/accelerate) 1.15 版：文档，以及文档没写之处的源码
# - [梯度累积](https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation)、[性能与批大小](https://huggingface.co/docs/accelerate/concept_guides/performance)
#
# 你做到了哪里：

# %%
check.status()
