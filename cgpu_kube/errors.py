# SPDX-License-Identifier: MIT
"""PURE: the exceptions of cgpu-kube. The text of each is one sentence for the user."""


class KubeError(Exception):
    """Base class: the thing, the limit, its holder and the next step, in one sentence."""


class BadQuantity(KubeError):
    """Text that is no quantity of Kubernetes, or none of the allowed ones."""


class BadAnnotation(KubeError):
    """An annotation of the gpushare protocol has a value that is not allowed."""


class Refused(KubeError):
    """A container or claim gets no slice."""
