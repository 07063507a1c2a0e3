# SPDX-License-Identifier: MIT
"""The clients against a driver that is there: bare nvsim in a VM, or any node directory in $NVSIM_DEV.

Named so that pytest does not collect it by itself:
    python -m pytest tests/nvsim/client/guest_test_clients.py
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CLIENT = Path(__file__).resolve().parent
sys.path.insert(0, str(CLIENT.parents[1] / "rmclient"))

import nvclient as nv  # noqa: E402

MIB = 1 << 20
DEV = os.environ.get("NVSIM_DEV", "/dev")
EXACT = bool(os.environ.get("ICOUNT"))  # elsewhere a busy host makes the clients late, and their queues run dry
FAST = ("--kernel-us", "200", "--depth", "16")


@pytest.fixture(scope="session")
def out(tmp_path_factory):
    """Where the programs and the NVML stub are; CLIENT_OUT if they are built already."""
    if "CLIENT_OUT" in os.environ:
        return Path(os.environ["CLIENT_OUT"])
    path = tmp_path_factory.mktemp("client")
    for directory in (CLIENT, CLIENT.parent / "nvml"):
        subprocess.run(["make", "-s", "-C", str(directory), f"OUT={path}"], check=True)
    return path


def run(out, *argv, expect=0):
    done = subprocess.run([out / argv[0], *argv[1:]], capture_output=True, text=True, timeout=120)
    assert done.returncode == expect, done.stdout + done.stderr
    return done


def load(out, *argv, expect=0):
    """simload's lines of JSON."""
    return [json.loads(line) for line in run(out, "simload", "--json", *argv, expect=expect).stdout.splitlines()]


@pytest.fixture
def gpu():
    with nv.Client(DEV) as rm:
        yield rm.gpu(0)


# ---- simload ----


def test_info(out):
    (info,) = load(out, "--info")
    assert info["simulated"] is True
    assert info["first_error"] is None
    assert 0 < info["free_bytes"] <= info["total_bytes"] <= info["ram_bytes"]
    assert info["uuid"].startswith("GPU-")
    assert info["uuid"] in run(out, "simsmi", "-L").stdout


def test_work_is_done_at_the_gpus_speed(out):
    (res,) = load(out, "--seconds", "2", "--kernel-us", "1000")
    assert res["first_error"] is None
    assert res["works"] / res["gpu_seconds"] == pytest.approx(1000, rel=0.005 if EXACT else 0.2)
    # the queue of 32 is filled up when it is half empty
    assert res["lat_p50_us"] == pytest.approx(24000, rel=0.1 if EXACT else 0.5)
    assert res["cpu_us"] < 0.5e6


def test_alloc_is_seen_and_given_back(out):
    before, during = load(out, "--info")[0], load(out, "--alloc-mib", "256", "--works", "1")[0]
    assert during["alloc_bytes"] == 256 * MIB
    assert before["free_bytes"] - during["free_bytes"] >= 256 * MIB
    assert load(out, "--info")[0]["free_bytes"] == before["free_bytes"]


def test_too_much_memory(out):
    mib = load(out, "--info")[0]["total_bytes"] // MIB + 1
    done = run(out, "simload", "--json", "--alloc-mib", str(mib), expect=3)
    assert done.stderr == "simload: RM_ALLOC(0x40): NV_ERR_NO_MEMORY (0x51)\n"
    error = json.loads(done.stdout)["first_error"]
    assert (error["call"], error["status"]) == ("RM_ALLOC(0x40)", 0x51)


def test_extra_allocation_is_refused_and_work_goes_on(out):
    mib = load(out, "--info")[0]["total_bytes"] // MIB
    (res,) = load(out, *FAST, "--seconds", "1", "--alloc-extra-mib", str(mib), "--after", "0.3")
    assert res["extra"] == {"bytes": mib * MIB, "status": 0x51}
    assert res["works"] > 3000
    (res,) = load(out, *FAST, "--seconds", "1", "--alloc-extra-mib", "16", "--after", "0.3")
    assert res["extra"]["status"] == 0


def test_processes_and_streams(out):
    (res,) = load(out, *FAST, "--depth", "64", "--seconds", "2", "--processes", "3", "--streams", "2")
    shares = [p["works"] for p in res["process"]]
    assert len({p["pid"] for p in res["process"]}) == 3
    assert sum(shares) == res["works"]
    assert min(shares) > (0.95 if EXACT else 0.5) * max(shares)


def test_copies(out):
    (res,) = load(out, "--copy-kib", "4096", "--seconds", "1")
    assert res["works"] > 100


def test_busy_and_idle(out):
    (res,) = load(out, *FAST, "--depth", "64", "--seconds", "2", "--busy-ms", "100", "--idle-ms", "100")
    assert (0.4 if EXACT else 0.2) < res["work_per_s"] / 5000 < 0.65


def test_requests(out):
    """Ten kernels of 100 us, one at a time, and one of 1 ms: latencies from the arrival, half of the time unused."""
    words = ("--request-us", "100x10,1000", "--requests-per-s", "100", "--depth", "1", "--poll-us", "50")
    one, same, other = (
        load(out, "--register", *words, "--seconds", "1.5", "--seed", seed)[0] for seed in ("1", "1", "2")
    )
    for res in one, other:
        assert res["first_error"] is None
        assert abs(res["works"] - 11 * res["latencies"]) <= 11
        assert 70 < res["latencies"] < 220
        assert 2000 < res["lat_p50_us"] < res["lat_p99_us"]
    if EXACT:
        assert one["latencies"] == pytest.approx(same["latencies"], abs=1)
    assert "go together" in run(out, "simload", *words[:2], expect=2).stderr
    assert "--request-us: 100y" in run(out, "simload", "--request-us", "100y", expect=2).stderr


def test_progress_lines(out):
    lines = load(out, *FAST, "--seconds", "1.2", "--interval", "0.3")
    events = [line["event"] for line in lines]
    assert events[0] == "ready"
    assert events[-1] == "result"
    assert events.count("progress") >= 3


@pytest.mark.parametrize("many", [(), ("--processes", "2")])
def test_sigterm_ends_with_a_result(out, many):
    proc = subprocess.Popen([out / "simload", "--json", "--seconds", "0", *FAST, *many], stdout=subprocess.PIPE)
    time.sleep(1.5)
    proc.send_signal(signal.SIGTERM)
    text, _ = proc.communicate(timeout=10)
    assert proc.returncode == 0
    assert json.loads(text)["works"] > 100


def test_hold(out):
    proc = subprocess.Popen(
        [out / "simload", "--json", "--hold", "--alloc-mib", "64"], stdout=subprocess.PIPE, text=True
    )
    ready = json.loads(proc.stdout.readline())
    assert ready["event"] == "ready"
    assert ready["pid"] == proc.pid
    smi = json.loads(run(out, "simsmi", "--json").stdout)
    (mine,) = [p for p in smi["gpu"][0]["process"] if p["pid"] == ready["pid"]]
    assert mine["bytes"] >= 64 * MIB
    proc.terminate()
    text, _ = proc.communicate(timeout=10)
    assert json.loads(text)["works"] == 0
    assert proc.returncode == 0


def test_then_hold_reports_before_it_holds(out):
    proc = subprocess.Popen(
        [out / "simload", "--json", "--works", "10", "--then-hold"], stdout=subprocess.PIPE, text=True
    )
    assert json.loads(proc.stdout.readline())["event"] == "ready"
    assert json.loads(proc.stdout.readline())["works"] == 10
    assert proc.poll() is None
    proc.terminate()
    assert proc.wait(10) == 0


def test_no_such_gpu(out):
    assert "no GPU 31" in run(out, "simload", "--gpu", "31", expect=4).stderr


# ---- flip ----


@pytest.mark.skipif(os.cpu_count() < 2, reason="a race needs two CPUs")
@pytest.mark.parametrize("mode", ["nested-size", "top-ptr", "top-cmd"])
def test_flips_get_through_the_bare_driver(out, mode):
    res = json.loads(run(out, "flip", "--mode", mode, "--calls", "3000", "--seconds", "20", "--json").stdout)
    assert res["calls"] == res["first"] + res["flipped"] + res["refused"]
    assert res["first"] > 0
    assert res["flipped"] > 0


@pytest.mark.parametrize("mode", ["nested-size", "top-ptr", "top-cmd"])
def test_the_bare_driver_reads_once(out, mode):
    res = json.loads(run(out, "flip", "--mode", mode, "--how", "fault", "--calls", "200", "--json").stdout)
    assert res["first"] == res["calls"] == 200
    assert res["turns"] >= 200


# ---- the Python client ----


def test_version():
    with nv.Ctl(DEV) as ctl:
        assert ctl.version() == (1, "580.105.08")


def test_handles_of_the_clients_choice(gpu):
    status, handle = gpu.alloc_vidmem(2 * MIB, handle=0x1234)
    assert (status, handle) == (0, 0x1234)
    assert gpu.alloc_vidmem(2 * MIB, handle=0x1234)[0] != 0
    assert gpu.free(handle) == 0
    assert gpu.free(handle) == nv.NV_ERR_OBJECT_NOT_FOUND


def test_a_client_belongs_to_its_file(gpu):
    with nv.Client(DEV) as other:
        other.handle = gpu.rm.handle
        assert other.control(other.handle, nv.NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, 128)[0] == nv.NV_ERR_INVALID_CLIENT


def test_unknown_calls(gpu):
    assert gpu.rm.alloc(0x4242)[0] == nv.NV_ERR_INVALID_CLASS
    assert gpu.control(0x2080FFFE, 8)[0] == nv.NV_ERR_NOT_SUPPORTED
    assert gpu.rm.ctl.raw(nv.request(0x7F, 16), bytearray(16)) == 22


def test_vidmem_through_the_cpu(gpu):
    status, mem = gpu.alloc_vidmem(2 * MIB)
    assert status == 0
    one, two = gpu.map_cpu(mem, 8192), gpu.map_cpu(mem, 4096, offset=4096)
    one.write32(4096, 0xC0FFEE)
    assert two.read32(0) == 0xC0FFEE
    one.close()
    two.close()
    assert gpu.free(mem) == 0


def test_memory_stays_while_it_is_mapped_in_uvm(gpu):
    space = gpu.space()
    before = gpu.memory()["free"]
    status, mem = gpu.alloc_vidmem(64 * MIB)
    assert status == 0
    status, va = space.map(mem, 64 * MIB)
    assert status == 0
    assert gpu.free(mem) == 0
    assert gpu.memory()["free"] <= before - 64 * MIB
    assert space.unmap(va) == 0
    assert gpu.memory()["free"] == before


def test_memory_stays_while_it_is_duplicated(gpu):
    before = gpu.memory()["free"]
    status, mem = gpu.alloc_vidmem(64 * MIB)
    assert status == 0
    status, dup = gpu.rm.dup(gpu.device, gpu.rm, mem)
    assert status == 0
    assert gpu.free(mem) == 0
    assert gpu.memory()["free"] == before - 64 * MIB
    assert gpu.free(dup) == 0
    assert gpu.memory()["free"] == before


def test_work(gpu):
    channel = gpu.space().group().channel()
    channel.submit(kernel_ns=100_000, count=50)
    assert channel.wait() == 50
    gaps = [channel.gpu_time(n + 1) - channel.gpu_time(n) for n in range(49)]
    assert min(gaps) >= 100_000
    assert not channel.pending()
    assert os.getpid() in gpu.processes()


def test_a_disabled_group_waits(gpu):
    group = gpu.space().group()
    channel = group.channel(enable=False)
    channel.submit(kernel_ns=1000)
    time.sleep(0.05)
    assert channel.reap() == 0
    assert channel.pending()
    assert group.enable() == 0
    assert channel.wait() == 1


def test_a_fault_kills_the_channel_only(gpu):
    space = gpu.space()
    bad, good = space.group().channel(), space.group().channel()
    bad.submit(op=99)
    good.submit(kernel_ns=1000)
    assert good.wait() == 1
    end = time.monotonic() + 5
    while not bad.group.fault() and time.monotonic() < end:
        time.sleep(0.01)
    assert bad.group.fault()
    with pytest.raises(TimeoutError):
        bad.wait(0.05)
    assert bad.group.enable() == nv.NV_ERR_INVALID_STATE
    assert good.group.fault() == 0


# ---- NVML ----


def nvml_cards(out):
    """The values that nvidia-ml-py reads, in a process of its own."""
    env = os.environ | {"LD_LIBRARY_PATH": str(out)}
    done = subprocess.run([sys.executable, CLIENT.parent / "nvml/show.py"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_nvml(out, gpu):
    cards = nvml_cards(out)
    assert len(cards) == len(gpu.rm.cards())
    card = cards[0]
    assert card["name"] == gpu.name()
    assert card["uuid"].replace("-", "") == "GPU" + gpu.uuid.hex()
    assert card["minor"] == gpu.minor
    assert card["total"] == gpu.memory()["ram"]
    assert card["free"] == gpu.memory()["free"]
    assert card["mig"] == "NVMLError_NotSupported"


def test_nvml_sees_a_busy_process(out):
    proc = subprocess.Popen([out / "simload", "--seconds", "0", "--depth", "64", "--alloc-mib", "128"])
    time.sleep(1.5)
    card = nvml_cards(out)[0]
    proc.terminate()
    assert proc.wait(10) == 0
    assert card["processes"][str(proc.pid)] >= 128 * MIB
    assert card["used_v2"] >= 128 * MIB
    assert card["utilization"] > 50
    assert nvml_cards(out)[0]["processes"] == {}


def test_only_gpus_whose_node_opens(out, tmp_path):
    """As in a container: a directory with some of the nodes."""
    for name in ("nvidiactl", "nvidia-uvm"):
        node = Path(DEV, name).stat()
        os.mknod(tmp_path / name, node.st_mode, node.st_rdev)
    env = os.environ | {"NVSIM_DEV": str(tmp_path), "LD_LIBRARY_PATH": str(out)}
    smi = subprocess.run([out / "simsmi", "-L"], env=env, capture_output=True, text=True, check=True)
    assert smi.stdout == "No devices were found\n"
    done = subprocess.run([out / "simload"], env=env, capture_output=True, text=True)
    assert done.returncode == 4
    code = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
