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

// Copies this block's rows of a weight, chunk after chunk; warps that copy take turns.
template <Kind kind, int N, int K, int bits>
__device__ __forceinline__ void stream(Ring<STAGES>& ring, char* places, int& mine,
                                       const Weight& weight, u64 policy) {
  constexpr int EACH = kind == GATE_UP ? 8 : 16, COLUMNS = CHUNK(bits);
  const Share<N> share;
  int lane = threadIdx.x & 31;
  for (int first = share.begin; first < share.end; first += EACH) {
    int count = min(EACH, share.end - first), at = first + lane % EACH;
    bool copies = lane < 16 && lane % EACH < count;
    long long row = kind == GATE_UP ? row_of_channel(at, lane & 8) : at;
    const char* from = weight.numbers + row * (K / 8 * bits);
    for (int k = 0; k < K; k += COLUMNS) {
      if (mine-- > 0) continue;
      mine = PRODUCERS - 1;
      int columns = min(COLUMNS, K - k), bytes = columns * bits / 8;
      int of_scales = bits == 4 ? columns / GROUP * 4 : 0;
      u64* full = ring.full + ring.place;
      ring.await_empty();
      if (lane == 0) expect_bytes(full, count * (16 / EACH) * (bytes + of_scales));
      __syncwarp();
      if (copies) {
        u32 to = address(places + ring.place * STAGE_BYTES + lane * row_stride(bits));
        copy_row(to, from + k / 8 * bits, bytes, full, policy);
        if (bits == 4)
          copy_row(to + ROW_BYTES, (const u32*)weight.scale + row * (K / GROUP) + k / GROUP,
                   of_scales, full, policy);
      }
      ring.next(PRODUCERS);
    }
  }
}

struct Shared {
  char* places;    // of the ring of weights
  u16* x;          // [B, x_stride]
  float* sums;     // [SUMS, SUM_NUMBERS]
  float* squares;  // [WARPS, B]
};

// Activations into shared memory, times the gain of their norm; sums of their squares.
template <bool normed, int K, int bits>
__device__ __forceinline__ void take(Shared& shared, const Rows& rows, const u16* gain,
                                     const int* before, int target) {
  constexpr int ROUNDS = (K + CONSUMERS * 8 - 1) / (CONSUMERS * 8);
  // Rows that are on the way together.
  constexpr int AT_ONCE = ROUNDS >= 8 ? 1 : 8 / ROUNDS < B ? 8 / ROUNDS : B;
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
  for (int b0 = 0; b0 < B; b0 += AT_ONCE) {
    uint4 values[AT_ONCE][ROUNDS];
#pragma unroll
    for (int r = 0; r < AT_ONCE && b0 + r < B; r++)
#pragma unroll
      for (int i = 0; i < ROUNDS; i++) {
        int k = (i * CONSUMERS + tid) * 8;
        if (k < K) values[r][i] = fresh16(rows[b0 + r] + k);
      }
#pragma unroll
    for (int r = 0; r < AT_ONCE && b0 + r < B; r++) {
      int b = b0 + r;
      float square = 0.f;
#pragma unroll
      for (int i = 0; i < ROUNDS; i++) {
        int k = (i * CONSUMERS + tid) * 8;
        if (k >= K) break;
        if (normed) {
          u32* p = (u32*)&values[r][i];
          const u32* q = (const u32*)&gains[i];
#pragma unroll
          for (int j = 0; j < 4; j++) {
            float a = low(p[j]), c = high(p[j]);
            square += a * a + c * c;
            p[j] = pack(a * low(q[j]), c * high(q[j]));
          }
        }
        *(uint4*)(shared.x + b * x_stride(K, bits) + k) = paired<bits>(values[r][i]);
      }
      if (normed) {
#pragma unroll
        for (int i = 16; i; i >>= 1) square += __shfl_xor_sync(~0u, square, i);
        if ((tid & 31) == 0) shared.squares[(tid >> 5) * B + b] = square;
      }
    }
  }
  sync_consumers();
}

// Sums of 16 rows over one chunk after another; chunks go around the warps.
//
// Activations that do not fit shared memory are read from memory where they are multiplied.
template <int N, int EACH, int K, int bits, bool normed>
__device__ __forceinline__ void multiply_tiles(Ring<STAGES>& ring, Ring<SUMS>& sums, Shared& shared,
                                               int& mine, const int* before, int target,
                                               const Rows& rows, const u16* gain) {
  constexpr bool FITS = K <= X_COLUMNS;
  typedef Part<bits, FITS> Sums;
  constexpr int COLUMNS = CHUNK(bits), PART = Sums::COLUMNS, AT_ONCE = FITS ? 1 : 4;
  int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
  const Share<N> share;
  if (share.begin == share.end) return;
  if (FITS)
    take<normed, K, bits>(shared, rows, gain, before, target);
  else
    await(before, target);
  const Masks masks;
  for (int first = share.begin; first < share.end; first += EACH) {
    for (int k = 0; k < K; k += COLUMNS) {
      if (mine-- > 0) continue;
      mine = WARPS - 1;
      Sums c;
      // A barrier tells one filling from the next, not from the one after: so another warp must
      // have emptied the place first.
      ring.await_empty();
      ring.await_full();
      const char* row = shared.places + ring.place * STAGE_BYTES + g * row_stride(bits);
      const char* w = row + Sums::byte(q);
      const int count = min(COLUMNS, K - k) / PART;
#pragma unroll UNROLL
      for (int part = 0; part < count; part += AT_ONCE) {
        uint4 x[AT_ONCE][2];
#pragma unroll
        for (int a = 0; a < AT_ONCE; a++)
#pragma unroll
          for (int i = 0; i < 2; i++) {
            int column = k + (part + a) * PART + Sums::column(q) + i * Sums::GAP;
            x[a][i] = make_uint4(0, 0, 0, 0);
            if (g < B && (FITS || part + a < count))
              x[a][i] = FITS ? *(const uint4*)(shared.x + g * x_stride(K, bits) + column)
                             : paired<bits>(fresh16(rows[g] + column));
          }
#pragma unroll
        for (int a = 0; a < AT_ONCE; a++) {
          if (!FITS && part + a >= count) break;
          c.add(w + (part + a) * PART * bits / 8, x[a], masks);
          c.scale(row + ROW_BYTES, part + a);
        }
      }
      __syncwarp();
      if (lane == 0) arrive(ring.empty + ring.place);
      ring.next(WARPS);
      sums.await_empty();
      float* to = shared.sums + sums.place * SUM_NUMBERS;
#pragma unroll
      for (int i = 0; i < 2; i++)
        if (2 * q + i < B) {
          to[(2 * q + i) * 16 + g] = c.total(i);
          to[(2 * q + i) * 16 + g + 8] = c.total(i + 2);
        }
      __syncwarp();
      if (lane == 0) arrive(sums.full + sums.place);
      sums.next(WARPS);
    }
  }
}

// Adds the sums of a tile's chunks, finishes its numbers and tells how many rows are done.
// scale: of the rows of a weight in 8 bits.
template <Kind kind, int N, int K, int bits>
__device__ __forceinline__ void finish_tiles(Ring<SUMS>& sums, Shared& shared, int* after,
                                             const void* scale, const u16* bias,
                                             const Rows& residual, void* y) {
  constexpr bool normed = kind == QKV || kind == GATE_UP || kind == HEAD;
  constexpr int EACH = kind == GATE_UP ? 8 : 16, VALUES = (SUM_NUMBERS + 31) / 32;
  const Share<N> share;
  int lane = threadIdx.x & 31;
  float of_norm[VALUES];
  for (int first = share.begin; first < share.end; first += EACH) {
    float sum[VALUES] = {}, add[VALUES] = {}, of_row[VALUES];
    for (int k = 0; k < K; k += CHUNK(bits)) {
      sums.await_full();
      if (k == 0)
#pragma unroll
        for (int e = 0; e < VALUES; e++) {
          int i = lane + e * 32, b = min(i / 16, B - 1), r = i % 16, n = min(first + r, N - 1);
          if (kind == OUT || kind == DOWN) add[e] = wide(fresh2(residual[b] + n));
          if (kind == QKV && bias) add[e] = wide(bias[n]);
          if (bits == 8) {
            long long row = kind == GATE_UP ? row_of_channel(min(first + r % 8, N - 1), r & 8) : n;
            of_row[e] = ((const float*)scale)[row];
          }
          if (normed && first == share.begin) {
            float square = 0.f;
#pragma unroll
            for (int w = 0; w < WARPS; w++) square += shared.squares[w * B + b];
            of_norm[e] = rsqrtf(square / K + EPSILON);
          }
        }
#pragma unroll
      for (int e = 0; e < VALUES; e++)
        if (lane + e * 32 < SUM_NUMBERS)
          sum[e] += shared.sums[sums.place * SUM_NUMBERS + lane + e * 32];
      __syncwarp();
      if (lane == 0) arrive(sums.empty + sums.place);
      sums.next(1);
    }
#pragma unroll
    for (int e = 0; e < VALUES; e++) {
      int i = lane + e * 32, b = i / 16, r = i % 16;
      float value = bits == 8 ? sum[e] * of_row[e] : sum[e];
      if (normed) value *= of_norm[e];
      float up = __shfl_down_sync(~0u, value, 8);
      if (i >= SUM_NUMBERS || first + r >= share.end) continue;
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
