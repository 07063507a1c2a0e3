# SPDX-License-Identifier: MIT
"""cgpu.toml and the files of cgpu.toml.d: values, their merge, and one sentence for each mistake."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_common import config, keys, policies
from cgpu_common.config import Config
from cgpu_common.errors import ConfigError
from cgpu_common.policies import Policy
from cgpu_common.settings import Caps, GpuSettings

UUID = "GPU-b084ae33-e244-0959-cd97-830000000000"


def parse(text: str) -> Config:
    return config.merge([("x.toml", tomllib.loads(text))])


def test_an_absent_default_file_is_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "DEFAULT_PATH", tmp_path / "none.toml")
    assert config.load(None) == Config()


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        config.load(tmp_path / "none.toml")


def test_every_key_can_be_set() -> None:
    text = f"""
allow_privileged = true
legacy_hook_config = "/etc/cgpu/hook.toml"
runtime_path = "/opt/cgpu-runtime"
lease_s = 5
reconcile_s = 7
log_level = "debug"
metrics = "127.0.0.1:9400"
[gpu]
policy = "weighted"
max_inst = 10
prio_ratio = 50
slice_us = 2000
uvm = "account"
overcommit = 125
default_memsize_mib = 8192
unsliced = "refuse"
[gpu."1"]
policy = 3
slice_us = "auto"
[gpu."{UUID}"]
overcommit = 200
[gpu."00000000:0A:00.0"]
uvm = "deny"
[container]
max_memory_mib = 100
max_memory_fraction = 0.5
max_weight = 4
ceiling = 9
highprio = "refuse"
"""
    assert parse(text) == Config(
        gpu=GpuSettings(2, 10, 50, 2000, 1, 125, 8192, "refuse"),
        gpus={
            "1": GpuSettings(policy=3, slice_us=0),
            UUID.lower(): GpuSettings(overcommit=200),
            "0000:0a:00.0": GpuSettings(uvm=0),
        },
        container=Caps(100, 0.5, 4, "refuse", ceiling=9),
        allow_privileged=True,
        legacy_hook_config="/etc/cgpu/hook.toml",
        runtime_path="/opt/cgpu-runtime",
        lease_s=5,
        reconcile_s=7,
        log_level="debug",
        metrics="127.0.0.1:9400",
    )


BAD = [
    # (file, key and value as the message has them, the allowed values in the message)
    ("allow_privileged = 1", "allow_privileged = 1", "true or false"),
    ("lease_s = true", "lease_s = true", "seconds"),
    ("lease_s = 0", "lease_s = 0", "from 1 to 86400"),
    ('lease_s = "5"', "lease_s = '5'", "seconds"),
    ("lease_s = 1.0e300", "lease_s = 1e+300", "seconds"),
    ('runtime_path = "cgpu-runtime"', "runtime_path = 'cgpu-runtime'", "an absolute path"),
    ("runtime_path = 7", "runtime_path = 7", "an absolute path"),
    ('runtime_path = "/a\\nb"', "runtime_path = '/a\\nb'", "an absolute path"),
    ("kube_wait_s = 46", "kube_wait_s = 46", "seconds from 1 to 45"),
    ('metrics_tls = "certs"', "metrics_tls = 'certs'", "the absolute path of a folder"),
    ('log_level = "loud"', "log_level = 'loud'", "debug, info, warning or error"),
    ("[gpu]\npolicy = 99", "gpu.policy = 99", policies.ALLOWED),
    ("[gpu]\npolicy = -1", "gpu.policy = -1", policies.ALLOWED),
    ("[gpu]\npolicy = true", "gpu.policy = true", policies.ALLOWED),
    ('[gpu]\npolicy = "Fair"', "gpu.policy = 'Fair'", "fair, preemptive"),
    ("[gpu]\npolicy = 2.0", "gpu.policy = 2.0", policies.ALLOWED),
    ("[gpu.policy]\nx = 1", "gpu.policy = {'x': 1}", policies.ALLOWED),
    ("[gpu]\nmax_inst = 101", "gpu.max_inst = 101", "from 1 to 100"),
    ("[gpu]\npolicy = 2\nmax_inst = 26", "gpu.max_inst = 26", "from 1 to 25 under policy weighted"),
    ('[gpu]\npolicy = 6\n[gpu."0"]\npolicy = 0\nmax_inst = 26', 'gpu."0".max_inst = 26', "under policy fair"),
    ("[gpu]\nprio_ratio = 100", "gpu.prio_ratio = 100", "from 20 to 99"),
    ("[gpu]\nslice_us = 0", "gpu.slice_us = 0", "from 1000 to 100000, or auto"),
    ('[gpu]\nuvm = "allow"', "gpu.uvm = 'allow'", "deny or account"),
    ("[gpu]\novercommit = 99", "gpu.overcommit = 99", "percent from 100 to 1000"),
    ("[gpu]\novercommit = 1.5", "gpu.overcommit = 1.5", "percent from 100 to 1000"),
    ("[gpu]\novercommit = inf", "gpu.overcommit = inf", "percent from 100 to 1000"),
    ("[gpu]\ndefault_memsize_mib = -1", "gpu.default_memsize_mib = -1", "a whole number of MiB"),
    ('[gpu]\nunsliced = "pass"', "gpu.unsliced = 'pass'", "allow or refuse"),
    ('[gpu."0"]\nmax_inst = 0', 'gpu."0".max_inst = 0', "from 1 to 100"),
    ('[gpu]\n"0" = 7', 'gpu."0" = 7', "a table"),
    ("gpu = 7", "gpu = 7", "a table"),
    ("[container]\nmax_weight = 0", "container.max_weight = 0", "from 1 to 100"),
    ("[container]\nceiling = 0", "container.ceiling = 0", "from 1 to 100"),
    ("[container]\nceiling = 101", "container.ceiling = 101", "from 1 to 100"),
    ("[container]\nmax_memory_mib = 0", "container.max_memory_mib = 0", "at least 1"),
    ("[container]\nmax_memory_fraction = 0.0", "container.max_memory_fraction = 0.0", "above 0 and up to 1"),
    ("[container]\nmax_memory_fraction = 1.01", "container.max_memory_fraction = 1.01", "above 0 and up to 1"),
    ("[container]\nmax_memory_fraction = true", "container.max_memory_fraction = true", "above 0 and up to 1"),
    ('[container]\ndisable = "no"', "container.disable = 'no'", "allow or deny"),
    ("[container]\ngrants = 1", "container.grants = 1", "optional or required"),
    ("[container]\nhighprio = false", "container.highprio = false", "allow or refuse"),
    ("container = 7", "container = 7", "a table"),
]


@pytest.mark.parametrize(("text", "key_and_value", "allowed"), BAD, ids=[row[1] for row in BAD])
def test_a_bad_value_names_file_key_value_and_what_is_allowed(text: str, key_and_value: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    sentence = str(caught.value)
    assert sentence.startswith(f"x.toml: {key_and_value} is not allowed: it must be ")
    assert allowed in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("text", "needle"),
    [
        ("nonsense = 1", "nonsense is not a known key; known are allow_privileged"),
        ("__class__ = 1", "__class__ is not a known key"),
        ("[contanier]\nallow = 1", "[contanier] is not a known table; known are [gpu], [gpu.NAME] and [container]"),
        ("[container]\nmin_weight = 1", "container.min_weight is not a known key"),
        ('[gpu."0"]\npolcy = 1', 'gpu."0".polcy is not a known key'),
        ("[gpu]\npolcy = 1", "gpu.polcy is neither a key nor a GPU"),
        ('[gpu."GPU-b084"]\npolicy = 1', "gpu.GPU-b084 is neither"),
        ('[gpu."-1"]\npolicy = 1', "gpu.-1 is neither"),
        ('unsliced = "refuse"', "unsliced is a key of the table [gpu]"),
        ("default_memsize_mib = 5", "default_memsize_mib is a key of the table [gpu]"),
    ],
)
def test_unknown_keys(text: str, needle: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert needle in str(caught.value)


def test_a_word_without_quotes(tmp_path: Path) -> None:
    main = tmp_path / "cgpu.toml"
    main.write_text("[gpu]\npolicy = weighted\n")
    with pytest.raises(ConfigError, match=r'at line 2.*; text stands in quotes: policy = "weighted"$'):
        config.load(main)


def test_drop_ins_in_the_order_of_their_names(tmp_path: Path) -> None:
    main = tmp_path / "cgpu.toml"
    main.write_text('lease_s = 5\n[gpu]\npolicy = 1\nmax_inst = 7\n[gpu."0"]\npolicy = 2\nuvm = "account"')
    drop = tmp_path / "cgpu.toml.d"
    drop.mkdir()
    (drop / "20-b.toml").write_text('[gpu]\npolicy = 4\n[gpu."0"]\npolicy = 3')
    (drop / "10-a.toml").write_text("[gpu]\npolicy = 3\n[container]\nmax_weight = 2")
    (drop / "30-c.toml.off").write_text("junk")
    made = config.load(main)
    assert made.gpu == GpuSettings(policy=4, max_inst=7)
    assert made.gpus == {"0": GpuSettings(policy=3, uvm=1)}
    assert made.lease_s == 5
    assert made.container.source("max_weight") == f"max_weight = 2 in [container] of {drop / '10-a.toml'}"


def test_drop_ins_without_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "DEFAULT_PATH", tmp_path / "cgpu.toml")
    (tmp_path / "cgpu.toml.d").mkdir()
    (tmp_path / "cgpu.toml.d/a.toml").write_text("lease_s = 9")
    assert config.load(None).lease_s == 9


@pytest.mark.parametrize("data", [b"= 7", b"\xff", b"[gpu", b"a = " + b"[" * 5000, b"#" * (2 << 20)], ids=len)
def test_a_file_that_is_none(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "cgpu.toml"
    path.write_text("")
    (tmp_path / "cgpu.toml.d").mkdir()
    bad = tmp_path / "cgpu.toml.d/bad.toml"
    bad.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    assert str(caught.value).startswith(f"{bad}: ")


def test_a_dangling_drop_in_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cgpu.toml"
    path.write_text("")
    (tmp_path / "cgpu.toml.d").mkdir()
    (tmp_path / "cgpu.toml.d/a.toml").symlink_to("nowhere")
    with pytest.raises(ConfigError, match="No such file"):
        config.load(path)


def _short(value: object) -> str:
    return ascii(value)[:48]


# (content of runtime.conf, does cgpu-runtime then request admission of every container?); test_shim.py uses them too.
ASKS = [
    (b"ask = always\n", True),
    (b'next = runc\nask="always"\n', True),
    (b"\t ask\t=\t always \t\n", True),
    (b"ask = always\r\n", True),
    (b"ask = always", True),
    (b"ask always\n", True),
    (b'ask = "always" # so\n', True),
    (b"ask = always\x0c\n", True),
    (b"ask = always\nask = never\n", True),
    (b"\xff\nask = always\n", True),
    (b"# ask = always\n", False),
    (b"#\x0cask = always\n", False),
    (b"x = 1\x0cask = always\n", False),
    (b"x = 1\x0bask = always\n", False),
    (b"x = 1\rask = always\n", False),
    ("x = 1\u2028ask = always\n".encode(), False),
    ("x = 1\u0085ask = always\n".encode(), False),
    ("ask = always\u2028\n".encode(), False),
    ("\ufeffask = always\n".encode(), False),
    (b"\x0cask = always\n", False),
    (b"ask = \x0calways\n", False),
    (b"ask\r= always\n", False),
    (b"ask = always # so\n", False),
    (b"ask = never\nask = always\n", False),
    (b"ask\nask = always\n", False),
    (b"asks = always\n", False),
    (b'ask"always"\n', False),
    (b"x = 1\0\nask = always\n", False),
    (b"ask = sometimes\n", False),
    (b"", False),
]


@pytest.mark.parametrize(
    ("conf", "good"), [*ASKS, (None, False), (b"ask = always\n" + b"#" * 65536, False)], ids=_short
)
def test_refusing_whole_gpus_needs_a_runtime_that_asks(tmp_path: Path, conf: bytes | None, good: bool) -> None:
    path, runtime = tmp_path / "cgpu.toml", tmp_path / "runtime.conf"
    path.write_text('[gpu."0"]\nunsliced = "refuse"')
    if conf is not None:
        runtime.write_bytes(conf)
    if good:
        assert config.load(path, runtime).anywhere("unsliced", "refuse")
        return
    with pytest.raises(ConfigError) as caught:
        config.load(path, runtime)
    assert f'{path}: gpu."0".unsliced = "refuse" needs `ask = always` in {runtime}' in str(caught.value)


_LEAF = st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=8), st.lists(st.integers(), max_size=2))
_NAMES = [*keys.NODE, *keys.GPU, *keys.CONTAINER, "gpu", "container", "0", UUID, "x"]
_NAME = st.sampled_from(_NAMES)


@given(st.dictionaries(_NAME, st.recursive(_LEAF, lambda inner: st.dictionaries(_NAME, inner, max_size=4))))
def test_whatever_a_file_says_there_is_a_configuration_or_a_sentence(values: dict[str, object]) -> None:
    try:
        made = config.merge([("x.toml", values)])
    except ConfigError as error:
        assert str(error).startswith("x.toml: ")
        assert "\n" not in str(error)
        return
    for table in (made.gpu, *made.gpus.values()):
        assert table.policy in (None, *Policy)
        assert table.overcommit is None or 100 <= table.overcommit <= 1000
        assert table.max_inst is None or 1 <= table.max_inst <= 100
