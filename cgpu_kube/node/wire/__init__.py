# SPDX-License-Identifier: MIT
"""Messages of the kubelet's sockets, generated from the .proto files by scripts/kube-proto. Committed, so that
neither a build nor an installation needs protoc."""
