# SPDX-License-Identifier: MIT
"""`cgpu-kube node`: what a node offers to the kubelet, and which GPU a pod's container gets."""
