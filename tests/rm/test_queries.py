# SPDX-License-Identifier: MIT
"""What libcuda and nvidia-smi ask at their start has an answer, by the GSP or by RM from what the GSP says."""

import struct

import nvclient as nv

GPU_GET_NAME_STRING, GPU_GET_SHORT_NAME_STRING = 0x20800110, 0x20800111
GR_GET_INFO, GR_GET_GLOBAL_SM_ORDER, CE_GET_ALL_CAPS = 0x20801201, 0x2080121B, 0x20802A0A
CLOCK_MAP_DOMAINS, CLOCK_RATES = 0x20809064, 0x2080A026
CE_GRCE = 1
#: Copy engines with a runlist of their own; RM knows five in all on these chips.
ALONE = {"TU104": 3, "GA102": 3, "AD102": 3}
#: GR_GET_INFO's indices: SHADER_PIPE_SUB_COUNT (TPCs), MAX_WARPS_PER_SM, MAX_THREADS_PER_WARP, MAX_SP_PER_SM
TPCS, WARPS_PER_SM, THREADS_PER_WARP, CORES_PER_SM = 0x09, 0x0D, 0x0E, 0x13
PRODUCTS = {
    "TU104": "Tesla T4",
    "GA100": "NVIDIA A100-SXM4-40GB",
    "GA102": "NVIDIA A10",
    "AD102": "NVIDIA L40",
    "GH100": "NVIDIA H100 80GB HBM3",
}


def ask(machine, cmd: int, params: bytes = b"", nested=()) -> tuple[bytes, list[bytes]]:
    """The parameters afterwards, as long as RM's table has them, and the nested buffers."""
    gpu = machine.client().gpu()
    size = machine.rm.control_info(cmd)[3] or len(params)
    status, out = gpu.rm.control(gpu.subdevice, cmd, params.ljust(size, b"\0"), nested)
    nv.check(f"RM_CONTROL({cmd:#x})", status)
    return out, gpu.rm.nested


def gr_info(machine, *indices: int) -> list[int]:
    rows = b"".join(struct.pack("<II", index, 0) for index in indices)
    _, nested = ask(machine, GR_GET_INFO, struct.pack("<IIQ", len(indices), 0, 0), [(8, rows)])
    return [value for _, value in struct.iter_unpack("<II", nested[0])]


def test_names(machine):
    name, _ = ask(machine, GPU_GET_NAME_STRING)
    short, _ = ask(machine, GPU_GET_SHORT_NAME_STRING)
    assert name[4:].rstrip(b"\0").decode() == PRODUCTS[machine.chip]
    assert short.rstrip(b"\0").decode() == f"{machine.chip}-A"


def test_units(machine):
    tpcs, warps, threads, cores = gr_info(machine, TPCS, WARPS_PER_SM, THREADS_PER_WARP, CORES_PER_SM)
    assert threads == 32
    assert warps in (32, 48, 64)
    assert cores in (64, 128)
    order, _ = ask(machine, GR_GET_GLOBAL_SM_ORDER)
    sms, counted = struct.unpack_from("<HH", order, len(order) - 24)
    assert (sms, counted) == (2 * tpcs, tpcs)
    each = list(struct.iter_unpack("<6H", order[: 12 * sms]))
    assert len({(gpc, tpc, sm) for gpc, tpc, sm, *_ in each}) == sms
    assert {row[3] for row in each} == set(range(tpcs))


def test_copy_engines(machine):
    """The last two share the runlist of graphics: libcuda makes its copy objects there with them."""
    caps, _ = ask(machine, CE_GET_ALL_CAPS)
    half = 128 if len(caps) == 136 else 64
    (present,) = struct.unpack_from("<I", caps, half)
    engines = [i for i in range(32) if present >> i & 1]
    alone = ALONE.get(machine.chip, 4)
    assert engines == list(range(alone + 2))
    assert [bool(caps[2 * i] & CE_GRCE) for i in engines] == [False] * alone + [True] * 2


def test_a_copy_object_on_a_channel_of_graphics(machine):
    """By a copy engine that shares its runlist, named by its index; a channel keeps to the first it has had."""
    for engine in (ALONE.get(machine.chip, 4), ALONE.get(machine.chip, 4) + 1):
        context = machine.client().gpu().context()
        status, _ = context.rm.alloc(context.classes[3], context.channel, struct.pack("<II", 0, engine))
        assert (engine, status) == (engine, nv.NV_OK)


def test_clocks(machine):
    """libcuda's attributes of clock rates: a domain's other number, then its rate."""
    rows = struct.pack("<IIIIII", 1, 0, 0, 0, 4, 0).ljust(32, b"\0")
    gpu = machine.client().gpu()
    status, out = gpu.rm.control(gpu.subdevice, CLOCK_MAP_DOMAINS, (struct.pack("<II", 0, 2) + rows).ljust(520, b"\0"))
    assert status == nv.NV_OK
    internal = [struct.unpack_from("<I", out, 8 + 16 * i + 4)[0] for i in range(2)]
    asked = b"".join(struct.pack("<IIII", each, 0, 0, 0) for each in internal)
    params = (bytes(16) + struct.pack("<I", 2) + asked).ljust(532, b"\0")
    status, out = gpu.rm.control(gpu.subdevice, CLOCK_RATES, params)
    assert status == nv.NV_OK
    assert all(struct.unpack_from("<I", out, 20 + 16 * i + 8)[0] > 1_000_000 for i in range(2))
    bad = (struct.pack("<III", 0, 1, 2)).ljust(520, b"\0")
    assert gpu.rm.control(gpu.subdevice, CLOCK_MAP_DOMAINS, bad)[0] == nv.NV_ERR_INVALID_ARGUMENT
