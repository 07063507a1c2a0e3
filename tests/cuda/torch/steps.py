# SPDX-License-Identifier: MIT
"""steps.py TOTAL_MIB: PyTorch on a slice of TOTAL_MIB, step by step; the exit status counts the steps that fail.

The simulated GPU executes no kernel: results of calls and what copies carry are compared, no computed value is.
"""

from __future__ import annotations

import faulthandler
import sys
import time
from collections.abc import Callable

STARTED = time.monotonic()
faulthandler.enable()

import torch  # noqa: E402
from torch.nn import functional  # noqa: E402

TOTAL_MIB = int(sys.argv[1])
MIB = 1 << 20
#: A step that takes longer does not end: its stack is printed.
STEP_S = 600
failed = 0


def step(name: str, run: Callable[[], object], expected: object) -> None:
    global failed
    faulthandler.dump_traceback_later(STEP_S, exit=True)
    try:
        result = run()
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    faulthandler.cancel_dump_traceback_later()
    good = result == expected
    failed += not good
    more = "" if good else f", not {expected}"
    print(f"{time.monotonic() - STARTED:6.1f} s  {'ok    ' if good else 'FAILED'} {name}: {result}{more}", flush=True)


cuda = torch.cuda
print(f"{time.monotonic() - STARTED:6.1f} s  torch {torch.__version__}", flush=True)


def there_and_back(pinned: bool) -> bool:
    here = torch.arange(MIB)
    there = here.pin_memory().cuda(non_blocking=True) if pinned else here.cuda()
    return torch.equal(there.cpu(), here)


def timed() -> bool:
    begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    x = torch.empty(MIB, device="cuda")
    begin.record()
    for _ in range(10):
        x = x + 1
    end.record()
    cuda.synchronize()
    return begin.elapsed_time(end) > 0


def on_a_stream() -> bool:
    here, stream = torch.arange(1000).pin_memory(), cuda.Stream()
    with cuda.stream(stream):
        there = here.cuda(non_blocking=True)
    stream.synchronize()
    return torch.equal(there.cpu(), here)


def one_too_large() -> str:
    try:
        torch.empty((TOTAL_MIB + 1) * MIB, dtype=torch.uint8, device="cuda")
    except Exception as error:
        return type(error).__name__
    return "allocated"


def filled() -> tuple[str, bool]:
    """Pieces of 256 MiB until one is refused; then the cache is given back to the driver."""
    pieces, name = [], ""
    while not name:
        try:
            pieces.append(torch.empty(256 * MIB, dtype=torch.uint8, device="cuda"))
        except Exception as error:
            name = type(error).__name__
    most = (TOTAL_MIB - 512) // 256 <= len(pieces) <= TOTAL_MIB // 256
    pieces.clear()
    cuda.empty_cache()
    return name, most


def graph() -> torch.Size:
    captured, x = cuda.CUDAGraph(), torch.empty(1024, device="cuda")
    with cuda.graph(captured):
        y = x * 2
    captured.replay()
    cuda.synchronize()
    return y.shape


def trained() -> int:
    layers = (torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.empty(8, 64, device="cuda")).sum().backward()
        optimizer.step()
    cuda.synchronize()
    return len(list(model.parameters()))


def square(dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(256, 256, device="cuda", dtype=dtype)


image, filters = (1, 3, 32, 32), (8, 3, 3, 3)
step("is_available", cuda.is_available, True)
step("device_count", cuda.device_count, 1)
step("get_device_name", cuda.get_device_name, "Tesla T4")
step("get_device_properties", lambda: cuda.get_device_properties(0).total_memory // MIB, TOTAL_MIB)
step("mem_get_info", lambda: cuda.mem_get_info()[1] // MIB, TOTAL_MIB)
step("copies", lambda: there_and_back(pinned=False), True)
step("copies of pinned memory", lambda: there_and_back(pinned=True), True)
step("events", timed, True)
step("a stream", on_a_stream, True)
step("more than all", one_too_large, "OutOfMemoryError")
step("all there is", filled, ("OutOfMemoryError", True))
step("all there is, again", filled, ("OutOfMemoryError", True))
step("cuBLAS", lambda: (square(torch.float) @ square(torch.float)).cpu().shape, (256, 256))
step("cuBLAS, half", lambda: (square(torch.half) @ square(torch.half)).cpu().shape, (256, 256))
step("a graph", graph, (1024,))
step(
    "cuDNN",
    lambda: functional.conv2d(torch.empty(image, device="cuda"), torch.empty(filters, device="cuda")).cpu().shape,
    (1, 8, 30, 30),
)
step("training", trained, 4)
step("cuFFT", lambda: torch.fft.fft(torch.empty(1024, device="cuda")).cpu().shape, (1024,))
step("cuSOLVER", lambda: torch.linalg.cholesky_ex(torch.eye(64).cuda())[0].cpu().shape, (64, 64))
step("sort", lambda: torch.empty(1024, device="cuda").sort()[0].cpu().shape, (1024,))
step("cuRAND", lambda: torch.randn(1024, device="cuda").cpu().shape, (1024,))
step("synchronize", cuda.synchronize, None)
sys.exit(failed)
