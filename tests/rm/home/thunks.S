/* SPDX-License-Identifier: MIT */
/* Indirect calls of NVIDIA's object go through these; a kernel has its own. */
.macro thunk reg
.globl __x86_indirect_thunk_\reg
__x86_indirect_thunk_\reg:
	jmp *%\reg
.endm

.irp reg, rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15
thunk \reg
.endr
.section .note.GNU-stack,"",@progbits
