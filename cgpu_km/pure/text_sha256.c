// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* SHA-256, for names of containers. */
#include "text_sha256.h"

#define BLOCK	64u

static const u32 k[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
	0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
	0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
	0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
	0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
	0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
	0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
	0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
	0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static u32 ror(u32 x, u32 by)
{
	return x >> by | x << (32 - by);
}

static void block(u32 state[8], const u8 *p)
{
	u32 v[8], w[64], i;

	for (i = 0; i < 16; i++, p += 4)
		w[i] = (u32)p[0] << 24 | (u32)p[1] << 16 | (u32)p[2] << 8 | p[3];
	for (; i < 64; i++) {
		u32 a = w[i - 15], b = w[i - 2];

		w[i] = w[i - 16] + (ror(a, 7) ^ ror(a, 18) ^ a >> 3) +
		       w[i - 7] + (ror(b, 17) ^ ror(b, 19) ^ b >> 10);
	}
	memcpy(v, state, sizeof(v));
	for (i = 0; i < 64; i++) {
		u32 t1 = v[7] + (ror(v[4], 6) ^ ror(v[4], 11) ^ ror(v[4], 25)) +
			 ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
		u32 t2 = (ror(v[0], 2) ^ ror(v[0], 13) ^ ror(v[0], 22)) +
			 ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));

		v[7] = v[6];
		v[6] = v[5];
		v[5] = v[4];
		v[4] = v[3] + t1;
		v[3] = v[2];
		v[2] = v[1];
		v[1] = v[0];
		v[0] = t1 + t2;
	}
	for (i = 0; i < 8; i++)
		state[i] += v[i];
}

/**
 * cgpu_sha256() - digest of a short text
 * @data: the text
 * @len: its length in bytes
 * @digest: 32 bytes, filled
 */
void cgpu_sha256(const u8 *data, size_t len, u8 digest[32])
{
	u32 state[8] = {
		0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
		0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
	};
	u8 last[2 * BLOCK];
	size_t rest = len % BLOCK, tail = rest < BLOCK - 8 ? BLOCK : 2 * BLOCK, i;

	for (i = 0; i + BLOCK <= len; i += BLOCK)
		block(state, data + i);
	memset(last, 0, sizeof(last));
	if (rest)
		memcpy(last, data + i, rest);
	last[rest] = 0x80;
	for (i = 0; i < 8; i++)
		last[tail - 1 - i] = (u8)((u64)len * 8 >> 8 * i);
	for (i = 0; i < tail; i += BLOCK)
		block(state, last + i);
	for (i = 0; i < 32; i++)
		digest[i] = (u8)(state[i / 4] >> (24 - 8 * (i % 4)));
}
