// Tokens of the cache as tensor cores take them.
//
// A warp reads the keys and values of 16 tokens at a time and multiplies them with up to eight
// heads, so heads of a group cost nothing. Of a head's numbers, thread q of four has chunks 4 i + q
// of eight: keys as rows of a product and queries as its columns then need no exchange. Of values,
// which are columns, two tokens make a pair.

#define TILE 16                    // tokens
#define LANES (D / 8)              // chunks of a head
#define CHUNKS (D / 32)            // of one of four threads
#define HEAD_TILES ((HG + 7) / 8)  // a product of tensor cores has eight columns

// A thread's chunks of a head: norm where the model has one, then the rotation of halves, rounded.
__device__ __forceinline__ void turn_head(uint4* chunks, const u16* gain, const float* cosine,
                                          const float* sine, int q) {
  float x[CHUNKS][8];
#pragma unroll
  for (int i = 0; i < CHUNKS; i++) {
    const u32* p = (const u32*)&chunks[i];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      x[i][2 * j] = low(p[j]);
      x[i][2 * j + 1] = high(p[j]);
    }
  }
  if (gain) {
    float square = 0.f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
      for (int j = 0; j < 8; j++) square += x[i][j] * x[i][j];
    square += __shfl_xor_sync(~0u, square, 1);
    square += __shfl_xor_sync(~0u, square, 2);
    float scale = rsqrtf(square / D + EPSILON);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
      for (int j = 0; j < 8; j++)
        x[i][j] = wide(round16(x[i][j] * scale * wide(gain[(4 * i + q) * 8 + j])));
  }
#pragma unroll
  for (int i = 0; i < CHUNKS / 2; i++)
#pragma unroll
    for (int j = 0; j < 8; j++) {
      float a = x[i][j], b = x[i + CHUNKS / 2][j];
      x[i][j] = a * cosine[i * 8 + j] - b * sine[i * 8 + j];
      x[i + CHUNKS / 2][j] = b * cosine[i * 8 + j] + a * sine[i * 8 + j];
    }
#pragma unroll
  for (int i = 0; i < CHUNKS; i++)
    chunks[i] = make_uint4(pack(x[i][0], x[i][1]), pack(x[i][2], x[i][3]), pack(x[i][4], x[i][5]),
                           pack(x[i][6], x[i][7]));
}

// What a warp found of its tokens, of heads 2 q and 2 q + 1 of each tile of heads: `mixed` has
// pairs of neighbouring numbers of values for both, [0, 2] and [1, 3].
struct Found {
  float most[HEAD_TILES][2], total[HEAD_TILES][2], mixed[HEAD_TILES][CHUNKS / 2][4][4];
};

// One tile of tokens, which end at `end`.
struct Tokens {
  uint4 keys[2][CHUNKS];        // tokens g and g + 8
  uint4 values[4][CHUNKS / 2];  // tokens 2 q, 2 q + 1, 2 q + 8 and 2 q + 9, chunks 8 i + g

  __device__ __forceinline__ void load_keys(const uint4* first, int count, int g, int q) {
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
      for (int i = 0; i < CHUNKS; i++) {
        int token = g + 8 * r;
        keys[r][i] = make_uint4(0, 0, 0, 0);
        if (token < count) keys[r][i] = __ldcs(first + token * G * LANES + 4 * i + q);
      }
  }
  __device__ __forceinline__ void load_values(const uint4* first, int count, int g, int q) {
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
      for (int i = 0; i < CHUNKS / 2; i++) {
        int token = 2 * q + r % 2 + r / 2 * 8;
        values[r][i] = make_uint4(0, 0, 0, 0);
        if (token < count) values[r][i] = __ldcs(first + token * G * LANES + 8 * i + g);
      }
  }
  // Products of keys with the heads of a tile: of tokens g (0, 1) and g + 8 (2, 3).
  __device__ __forceinline__ void score(const uint4* heads, float* scores) const {
    float other[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) scores[i] = 0.f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
      uint4 a = keys[0][i], b = keys[1][i];
      multiply(scores, a.x, b.x, a.y, b.y, heads[i].x, heads[i].y);
      multiply(other, a.z, b.z, a.w, b.w, heads[i].z, heads[i].w);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) scores[i] += other[i];
  }
  // weights: of tokens of the first eight and of the others, as `transposed` has them.
  __device__ __forceinline__ void mix(float (*mixed)[4][4], u32 first, u32 second) const {
#pragma unroll
    for (int i = 0; i < CHUNKS / 2; i++) {
      const u32* v[4];
#pragma unroll
      for (int r = 0; r < 4; r++) v[r] = (const u32*)&values[r][i];
#pragma unroll
      for (int j = 0; j < 4; j++)
        multiply(mixed[i][j], __byte_perm(v[0][j], v[1][j], 0x5410),
                 __byte_perm(v[0][j], v[1][j], 0x7632), __byte_perm(v[2][j], v[3][j], 0x5410),
                 __byte_perm(v[2][j], v[3][j], 0x7632), first, second);
    }
  }
};

// Weights of the tokens of a tile from their scores, and what was found before relative to them.
__device__ __forceinline__ void weigh(Found& found, int tile, float* scores, int count, int g) {
#pragma unroll
  for (int i = 0; i < 4; i++)
    scores[i] = g + i / 2 * 8 < count ? scores[i] * SCALE_LOG2 : 2.f * NOTHING;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float now = fmaxf(scores[h], scores[h + 2]);
#pragma unroll
    for (int i = 4; i < 32; i <<= 1) now = fmaxf(now, __shfl_xor_sync(~0u, now, i));
    now = fmaxf(now, found.most[tile][h]);
    float keep = exp2f(found.most[tile][h] - now);
    found.most[tile][h] = now;
    scores[h] = exp2f(scores[h] - now);
    scores[h + 2] = exp2f(scores[h + 2] - now);
    found.total[tile][h] = found.total[tile][h] * keep + scores[h] + scores[h + 2];
#pragma unroll
    for (int i = 0; i < CHUNKS / 2; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        found.mixed[tile][i][j][h] *= keep;
        found.mixed[tile][i][j][h + 2] *= keep;
      }
  }
}
