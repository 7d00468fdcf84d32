// Products of weights and activations. Some warps copy weights into a ring in shared memory, eight
// multiply what is there, and one adds up and finishes.

// Rows of an operation that this block computes. Shares differ by one row, so that all blocks end
// together.
template <int N>
struct Share {
  int begin, end;
  __device__ __forceinline__ Share() {
    begin = (int)((long long)N * blockIdx.x / gridDim.x);
    end = (int)((long long)N * (blockIdx.x + 1) / gridDim.x);
  }
};

// A ring of places that one side fills and the other empties, in the same order.
template <int PLACES>
struct Ring {
  u64 *full, *empty;
  int place;
  u32 phase;
  __device__ __forceinline__ void next(int by) {
    for (place += by; place >= PLACES; place -= PLACES) phase ^= 1;
  }
  __device__ __forceinline__ void await_full() { wait_phase(full + place, phase); }
  __device__ __forceinline__ void await_empty() { wait_phase(empty + place, phase ^ 1); }
};

template <Kind kind, int N, int K>
__device__ __forceinline__ void stream(Ring<STAGES>& ring, char* places, int& mine, const u16* w,
                                       u64 policy) {
  constexpr int EACH = kind == GATE_UP ? 8 : 16;
  const Share<N> share;
  int lane = threadIdx.x & 31;
  for (int first = share.begin; first < share.end; first += EACH) {
    int count = min(EACH, share.end - first), at = first + lane % EACH;
    bool copies = lane < 16 && lane % EACH < count;
    long long row = at;
    if (kind == GATE_UP) {  // rows of gate, then of up, in blocks of channels
      row = (long long)(at / FFN_BLOCK) * 2 * FFN_BLOCK + at % FFN_BLOCK;
      if (lane & 8) row += FFN_BLOCK;
    }
    const u16* from = w + row * K;
    for (int k = 0; k < K; k += CHUNK) {
      if (mine-- > 0) continue;
      mine = PRODUCERS - 1;
      int bytes = min(CHUNK, K - k) * 2;
      ring.await_empty();
      if (lane == 0) expect_bytes(ring.full + ring.place, count * (16 / EACH) * bytes);
      __syncwarp();
      if (copies)
        copy_row(address(places + ring.place * STAGE_BYTES + lane * ROW_BYTES), from + k, bytes,
                 ring.full + ring.place, policy);
      ring.next(PRODUCERS);
    }
  }
}

struct Shared {
  char* places;    // of the ring of weights
  u16* x;          // [B, K]
  float* sums;     // [SUMS, 16 * B]
  float* squares;  // [WARPS, B]
};

// Activations into shared memory, times the gain of their norm; sums of their squares.
template <bool normed, int K>
__device__ __forceinline__ void take(Shared& shared, const u16* const* rows, const u16* gain,
                                     const int* before, int target) {
  constexpr int ROUNDS = (K + CONSUMERS * 8 - 1) / (CONSUMERS * 8);
  int tid = threadIdx.x;
  uint4 gains[ROUNDS];
  if (normed)
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
      int k = (i * CONSUMERS + tid) * 8;
      if (k < K) gains[i] = *(const uint4*)(gain + k);
    }
  if (before)
    await(before, target);
  else
    sync_consumers();
#pragma unroll
  for (int b = 0; b < B; b++) {
    float square = 0.f;
    uint4 values[ROUNDS];
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
      int k = (i * CONSUMERS + tid) * 8;
      if (k < K) values[i] = fresh16(rows[b] + k);
    }
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
      int k = (i * CONSUMERS + tid) * 8;
      if (k >= K) break;
      if (normed) {
        u32* p = (u32*)&values[i];
        const u32* q = (const u32*)&gains[i];
#pragma unroll
        for (int j = 0; j < 4; j++) {
          float a = low(p[j]), c = high(p[j]);
          square += a * a + c * c;
          p[j] = pack(a * low(q[j]), c * high(q[j]));
        }
      }
      *(uint4*)(shared.x + b * K + k) = values[i];
    }
    if (normed) {
#pragma unroll
      for (int i = 16; i; i >>= 1) square += __shfl_xor_sync(~0u, square, i);
      if ((tid & 31) == 0) shared.squares[(tid >> 5) * B + b] = square;
    }
  }
  sync_consumers();
}

// Sums of 16 rows over one chunk after another; chunks go around the warps.
template <int N, int EACH, int K, bool normed>
__device__ __forceinline__ void multiply_tiles(Ring<STAGES>& ring, Ring<SUMS>& sums, Shared& shared,
                                               int& mine, const int* before, int target,
                                               const u16* const* rows, const u16* gain) {
  int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
  const Share<N> share;
  if (share.begin == share.end) return;
  take<normed, K>(shared, rows, gain, before, target);
  for (int first = share.begin; first < share.end; first += EACH) {
    for (int k = 0; k < K; k += CHUNK) {
      if (mine-- > 0) continue;
      mine = WARPS - 1;
      float c[2][4] = {{0.f, 0.f, 0.f, 0.f}, {0.f, 0.f, 0.f, 0.f}};
      // A barrier tells one filling from the next, not from the one after: so another warp must
      // have emptied the place first.
      ring.await_empty();
      ring.await_full();
      // Thread q takes 16 neighbouring columns of 64, in weights and activations alike; the sum
      // does not ask for their order.
      const char* w = shared.places + ring.place * STAGE_BYTES + g * ROW_BYTES + q * 32;
      const u16* from = shared.x + g * K + k + q * 16;
#pragma unroll
      for (int part = 0; part < CHUNK / 64; part++) {
        if (K % CHUNK != 0 && k + part * 64 >= K) break;
        uint4 upper[2] = {*(const uint4*)(w + part * 128), *(const uint4*)(w + part * 128 + 16)};
        uint4 lower[2] = {*(const uint4*)(w + part * 128 + 8 * ROW_BYTES),
                          *(const uint4*)(w + part * 128 + 8 * ROW_BYTES + 16)};
        uint4 x[2] = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
        if (g < B) {
          x[0] = *(const uint4*)(from + part * 64);
          x[1] = *(const uint4*)(from + part * 64 + 8);
        }
        const u32 *u = (const u32*)upper, *l = (const u32*)lower, *v = (const u32*)x;
#pragma unroll
        for (int j = 0; j < 8; j += 2)
          multiply(c[j / 2 % 2], u[j], l[j], u[j + 1], l[j + 1], v[j], v[j + 1]);
      }
      __syncwarp();
      if (lane == 0) arrive(ring.empty + ring.place);
      ring.next(WARPS);
      sums.await_empty();
      float* to = shared.sums + sums.place * 16 * B;
#pragma unroll
      for (int i = 0; i < 2; i++)
        if (2 * q + i < B) {
          to[(2 * q + i) * 16 + g] = c[0][i] + c[1][i];
          to[(2 * q + i) * 16 + g + 8] = c[0][i + 2] + c[1][i + 2];
        }
      __syncwarp();
      if (lane == 0) arrive(sums.full + sums.place);
      sums.next(WARPS);
    }
  }
}

// Adds the sums of a tile's chunks, finishes its numbers and tells how many tiles are done.
template <Kind kind, int N, int K>
__device__ __forceinline__ void finish_tiles(Ring<SUMS>& sums, Shared& shared, int* after,
                                             const u16* bias, const u16* const* residual, void* y) {
  constexpr bool normed = kind == QKV || kind == GATE_UP || kind == HEAD;
  constexpr int EACH = kind == GATE_UP ? 8 : 16, VALUES = (16 * B + 31) / 32;
  const Share<N> share;
  int lane = threadIdx.x & 31;
  float scale[VALUES];
  for (int first = share.begin; first < share.end; first += EACH) {
    float sum[VALUES] = {}, add[VALUES] = {};
    for (int k = 0; k < K; k += CHUNK) {
      sums.await_full();
      if (k == 0)
#pragma unroll
        for (int e = 0; e < VALUES; e++) {
          int i = lane + e * 32, b = min(i / 16, B - 1), n = min(first + i % 16, N - 1);
          if (kind == OUT || kind == DOWN) add[e] = wide(fresh2(residual[b] + n));
          if (kind == QKV && bias) add[e] = wide(bias[n]);
          if (normed && first == share.begin) {
            float square = 0.f;
#pragma unroll
            for (int w = 0; w < WARPS; w++) square += shared.squares[w * B + b];
            scale[e] = rsqrtf(square / K + EPSILON);
          }
        }
#pragma unroll
      for (int e = 0; e < VALUES; e++)
        if (lane + e * 32 < 16 * B) sum[e] += shared.sums[sums.place * 16 * B + lane + e * 32];
      __syncwarp();
      if (lane == 0) arrive(sums.empty + sums.place);
      sums.next(1);
    }
#pragma unroll
    for (int e = 0; e < VALUES; e++) {
      int i = lane + e * 32, b = i / 16, r = i % 16;
      float value = normed ? sum[e] * scale[e] : sum[e];
      float up = __shfl_down_sync(~0u, value, 8);
      if (i >= 16 * B || first + r >= share.end) continue;
      if (kind == GATE_UP) {
        if (r < 8) ((u16*)y)[b * FFN + first + r] = round16(value / (1.f + __expf(-value)) * up);
      } else if (kind == HEAD) {
        ((float*)y)[(long long)b * VOCAB + first + r] = value;
      } else {
        constexpr int width = kind == QKV ? QKV_ROWS : DIM;
        ((u16*)y)[b * width + first + r] = round16(value + add[e]);
      }
    }
  }
  __syncwarp();
  if (kind == QKV) {
    int group = share.begin / GROUP_ROWS + lane;
    int rows = min(share.end, (group + 1) * GROUP_ROWS) - max(share.begin, group * GROUP_ROWS);
    if (rows > 0) signal(after + group, rows);
  } else if (kind != HEAD && share.end > share.begin && lane == 0)
    signal(after, share.end - share.begin);
}
