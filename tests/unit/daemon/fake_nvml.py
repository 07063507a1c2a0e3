# SPDX-License-Identifier: MIT
"""The part of pynvml that cgpud calls, over cards whose answers a test sets."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from cgpu_common.model import MIB


class NVMLError(Exception):
    pass


class NotSupportedError(NVMLError):
    pass


class Card:
    """The answers by call; None: not supported. From the call `lost` on, every call fails with "GPU is lost"."""

    def __init__(
        self, number: int, lost: str = "", gpm: Any = None, nvlinks: Sequence[str | None] = (), **answers: Any
    ) -> None:
        """@gpm: percentages by the number of a metric, or the error of reading them; None: no such counters. @nvlinks:
        the address at the other end of each, "switch", or None where it is down."""
        self.lost, self.gpm, self.nvlinks = lost, gpm, nvlinks
        self.answers: dict[str, Any] = {
            "PciInfo": SimpleNamespace(busId=f"00000000:0{number + 1}:00.0"),
            "Name": "card",
            "UUID": f"GPU-{number}",
            "MinorNumber": number,
            "MemoryInfo": SimpleNamespace(total=1000 * MIB, used=0),
            "MigMode": (0, 0),
            "ComputeMode": 0,
            "UtilizationRates": SimpleNamespace(gpu=38, memory=20),
            "Temperature": 45,
            "PowerUsage": 31_250,
            "EnforcedPowerLimit": 70_000,
            "ProcessUtilization": None,
            **answers,
        }


class Library:
    """The module. `looks` counts how often it was opened, `open` how often it still is."""

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_FunctionNotFound = NotSupportedError
    NVML_TEMPERATURE_GPU = 0
    NVML_COMPUTEMODE_EXCLUSIVE_THREAD, NVML_COMPUTEMODE_PROHIBITED, NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 1, 2, 3

    def __init__(self, cards: list[Card]) -> None:
        self.cards = cards
        self.looks = self.open = self.gpm_samples = 0
        self.confidential: int | None = None  # ccFeature; None: not known to the driver
        for what in Card(0).answers:
            setattr(self, f"nvmlDeviceGet{what}", self._getter(what))

    NVML_NVLINK_MAX_LINKS, NVML_NVLINK_DEVICE_TYPE_SWITCH = 18, 2

    def nvmlDeviceGetNvLinkState(self, card: Card, link: int) -> int:
        if link >= len(card.nvlinks):
            raise NotSupportedError
        return int(card.nvlinks[link] is not None)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, card: Card, link: int) -> int:
        return 2 if card.nvlinks[link] == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, card: Card, link: int) -> Any:
        assert card.nvlinks[link] != "switch", "it has no address that is a GPU's"
        return SimpleNamespace(busId=f"0000{card.nvlinks[link]}".encode())

    NVML_GPM_METRICS_GET_VERSION, NVML_GPM_METRIC_SM_UTIL, NVML_GPM_METRIC_DRAM_BW_UTIL = 1, 2, 10

    def nvmlGpmQueryDeviceSupport(self, card: Card) -> Any:
        if card.gpm is None:
            raise NotSupportedError
        return SimpleNamespace(isSupportedDevice=1)

    def nvmlGpmSampleAlloc(self) -> Any:
        self.gpm_samples += 1
        return SimpleNamespace(card=None)

    def nvmlGpmSampleGet(self, card: Card, one: Any) -> None:
        one.card = card

    def nvmlGpmSampleFree(self, _one: Any) -> None:
        self.gpm_samples -= 1

    @staticmethod
    def c_nvmlGpmMetricsGet_t() -> Any:
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=0, value=0.0, nvmlReturn=999) for _ in range(4)])

    def nvmlGpmMetricsGet(self, asked: Any) -> None:
        assert asked.sample1 is not asked.sample2 and asked.sample1.card is asked.sample2.card
        values = asked.sample1.card.gpm
        if isinstance(values, NVMLError):
            raise values
        for one in asked.metrics[: asked.numMetrics]:
            one.value, one.nvmlReturn = values[one.metricId], 0

    def nvmlSystemGetConfComputeState(self) -> Any:
        if self.confidential is None:
            raise NotSupportedError
        return SimpleNamespace(ccFeature=self.confidential)

    def nvmlInit(self) -> None:
        self.looks += 1
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        if self.cards[index].lost == "HandleByIndex":
            raise NVMLError("GPU is lost")
        return self.cards[index]

    @staticmethod
    def _getter(what: str) -> Any:
        def get(card: Card, *_: Any) -> Any:
            names = list(card.answers)
            if card.lost and (card.lost == "all" or names.index(what) >= names.index(card.lost)):
                raise NVMLError("GPU is lost")
            if card.answers[what] is None:
                raise NotSupportedError
            return card.answers[what]

        return get
