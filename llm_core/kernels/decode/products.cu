// Products of weights and activations. Some warps copy weights into a ring in shared memory, eight
// multiply what is there, and one adds up and finishes.

// Rows and columns of an operation that this block computes. Shares differ by one row, so that all
// blocks end together.
//
// SLICES blocks share rows of the down projection and add up what they found: its activations would
// not fit shared memory, and each block would read all of them.
template <Kind kind, int N, int K, int bits>
struct Share {
  static constexpr int PARTS = kind == DOWN ? SLICES : 1, GROUPS = BLOCKS / PARTS;
  static constexpr int UNIT = bits == 4 ? 256 : 64, UNITS = K / UNIT;  // columns
  static constexpr int COLUMNS = (UNITS + PARTS - 1) / PARTS * UNIT;   // at most
  int group, slice, begin, end, column, columns;
  __device__ __forceinline__ Share() {
    group = blockIdx.x / PARTS;
    slice = blockIdx.x % PARTS;
    begin = group < GROUPS ? (int)((long long)N * group / GROUPS) : N;
    end = group < GROUPS ? (int)((long long)N * (group + 1) / GROUPS) : N;
    column = UNITS * slice / PARTS * UNIT;
    columns = UNITS % PARTS ? UNITS * (slice + 1) / PARTS * UNIT - column : COLUMNS;
  }
};

__host__ __device__ constexpr bool is_normed(Kind kind) {
  return kind == QKV || kind == GATE_UP || kind == HEAD;
}
// Rows of a tile; of gate and up it has 8 channels of each.
__host__ __device__ constexpr int rows_of_tile(Kind kind) { return kind == GATE_UP ? 8 : 16; }

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

// Keeps few chunks of a warp on the way at once: what blocks tell one another would queue behind
// more of them.
struct Pace {
  Ring<STAGES> landed;
  int more;  // that may start before any has landed
  __device__ __forceinline__ void await() {
    if (more-- > 0) return;
    more = 0;
    landed.await_full();
    landed.next(PRODUCERS);
  }
};

// Copies this block's rows of a weight, chunk after chunk; warps that copy take turns.
template <Kind kind, int N, int K, int bits>
__device__ __forceinline__ void stream(Ring<STAGES>& ring, Pace& pace, char* places, int& mine,
                                       const Weight& weight, u64 policy) {
  constexpr int EACH = rows_of_tile(kind), COLUMNS = CHUNK(bits);
  const Share<kind, N, K, bits> share;
  int lane = threadIdx.x & 31;
#pragma unroll 1
  for (int first = share.begin; first < share.end; first += EACH) {
    int count = min(EACH, share.end - first), at = first + lane % EACH;
    bool copies = lane < 16 && lane % EACH < count;
    long long row = kind == GATE_UP ? row_of_channel(at, lane & 8) : at;
    const char* from = weight.numbers + row * (K / 8 * bits);
#pragma unroll 1
    for (int k = 0; k < share.columns; k += COLUMNS) {
      if (mine-- > 0) continue;
      mine = PRODUCERS - 1;
      pace.await();
      int columns = min(COLUMNS, share.columns - k), bytes = columns * bits / 8;
      int of_scales = bits == 4 ? columns / GROUP * 4 : 0, column = share.column + k;
      u64* full = ring.full + ring.place;
      ring.await_empty();
      if (lane == 0) expect_bytes(full, count * (16 / EACH) * (bytes + of_scales));
      __syncwarp();
      if (copies) {
        u32 to = address(places + ring.place * STAGE_BYTES + lane * row_stride(bits));
        copy_row(to, from + column / 8 * bits, bytes, full, policy);
        if (bits == 4)
          copy_row(to + ROW_BYTES, (const u32*)weight.scale + row * (K / GROUP) + column / GROUP,
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
  float* of_x;     // sums of groups, [columns / GROUP, B] (int4)
};

// Activations of some columns into shared memory, times the gain of their norm; sums of their
// squares, and those of groups for weights in 4 bits.
template <bool normed, int K, int bits>
__device__ __forceinline__ void take(Shared& shared, const Rows& rows, int column, int columns,
                                     const u16* gain, const int* before, int target) {
  constexpr int ROUNDS = (K + CONSUMERS * 8 - 1) / (CONSUMERS * 8);
  // Rows that are on the way together.
  constexpr int FEW = ROUNDS >= ROWS_AT_ONCE ? 1 : ROWS_AT_ONCE / ROUNDS;
  constexpr int AT_ONCE = FEW < B ? FEW : B;
  int tid = threadIdx.x;
  uint4 gains[ROUNDS];
  if (normed)
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
      int k = (i * CONSUMERS + tid) * 8;
      if (k < columns) gains[i] = *(const uint4*)(gain + column + k);
    }
  if (before)
    await(before, target);
  else
    sync_consumers();
#pragma unroll 1
  for (int b0 = 0; b0 < B; b0 += AT_ONCE) {
    uint4 values[AT_ONCE][ROUNDS];
#pragma unroll
    for (int r = 0; r < AT_ONCE && b0 + r < B; r++)
#pragma unroll
      for (int i = 0; i < ROUNDS; i++) {
        int k = (i * CONSUMERS + tid) * 8;
        if (k < columns) values[r][i] = fresh16(rows[b0 + r] + column + k);
      }
#pragma unroll
    for (int r = 0; r < AT_ONCE && b0 + r < B; r++) {
      int b = b0 + r;
      float square = 0.f;
#pragma unroll
      for (int i = 0; i < ROUNDS; i++) {
        int k = (i * CONSUMERS + tid) * 8;
        if (k >= columns) break;
        u32* p = (u32*)&values[r][i];
        if (normed) {
          const u32* q = (const u32*)&gains[i];
#pragma unroll
          for (int j = 0; j < 4; j++) {
            float a = low(p[j]), c = high(p[j]);
            square += a * a + c * c;
            p[j] = pack(a * low(q[j]), c * high(q[j]));
          }
        }
        if (bits == 4) {  // columns are whole groups, so whole warps are here
          float sum = 0.f;
#pragma unroll
          for (int j = 0; j < 4; j++) sum += low(p[j]) + high(p[j]);
#pragma unroll
          for (int j = GROUP / 16; j; j >>= 1) sum += __shfl_xor_sync(~0u, sum, j);
          if (k % GROUP == 0) shared.of_x[k / GROUP * B + b] = sum;
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
template <Kind kind, int N, int K, int bits>
__device__ __forceinline__ void multiply_tiles(Ring<STAGES>& ring, Ring<SUMS>& sums, Shared& shared,
                                               int& mine, const int* before, int target,
                                               const Rows& rows, const u16* gain) {
  typedef Share<kind, N, K, bits> Own;
  typedef Part<bits> Sums;
  constexpr int COLUMNS = CHUNK(bits), PART = Sums::COLUMNS;
  constexpr int STRIDE = x_stride(Own::COLUMNS, bits);
  int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
  const Own share;
  if (share.begin == share.end) return;
  take<is_normed(kind), Own::COLUMNS, bits>(shared, rows, share.column, share.columns, gain, before,
                                            target);
  const Masks masks;
#pragma unroll 1
  for (int first = share.begin; first < share.end; first += rows_of_tile(kind)) {
#pragma unroll 1
    for (int k = 0; k < share.columns; k += COLUMNS) {
      if (mine-- > 0) continue;
      mine = WARPS - 1;
      Sums c;
      // A barrier tells one filling from the next, not from the one after: so another warp must
      // have emptied the place first.
      ring.await_empty();
      ring.await_full();
      const char* row = shared.places + ring.place * STAGE_BYTES + g * row_stride(bits);
      const char* w = row + Sums::byte(q);
      const u16* x_at = shared.x + g * STRIDE + k + Sums::column(q);
      const int count = min(COLUMNS, share.columns - k) / PART;
#pragma unroll UNROLL
      for (int part = 0; part < count; part++) {
        uint4 x[ROW_TILES][2];
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
          for (int i = 0; i < 2; i++) {
            x[tile][i] = make_uint4(0, 0, 0, 0);
            if (tile * 8 + g < B)
              x[tile][i] = *(const uint4*)(x_at + tile * 8 * STRIDE + part * PART + i * Sums::GAP);
          }
        c.add(w + part * PART * bits / 8, x, masks);
        c.scale(row + ROW_BYTES, part, shared.of_x + (k / GROUP + part) * B);
      }
      __syncwarp();
      if (lane == 0) arrive(ring.empty + ring.place);
      ring.next(WARPS);
      sums.await_empty();
      float* to = shared.sums + sums.place * SUM_NUMBERS;
#pragma unroll
      for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
        for (int i = 0; i < 2; i++)
          if (int b = tile * 8 + 2 * q + i; b < B) {
            to[b * 16 + g] = c.total(tile, i);
            to[b * 16 + g + 8] = c.total(tile, i + 2);
          }
      __syncwarp();
      if (lane == 0) arrive(sums.full + sums.place);
      sums.next(WARPS);
    }
  }
}

// Adds what the blocks of a group found of the same rows, each block for its part of the rows, and
// returns how many those are. `done` counts warps of the group that have written theirs.
template <int N, int GROUPS>
__device__ __forceinline__ int join_slices(int b0, const float* found, int begin, int end,
                                           int slice, int* done, int target, const Rows& residual,
                                           u16* y) {
  constexpr int MOST = ((N + GROUPS - 1) / GROUPS + SLICES - 1) / SLICES;  // rows
  constexpr int VALUES = (MOST * ROWS_EACH + 31) / 32, AT_ONCE = VALUES < 4 ? VALUES : 4;
  int lane = threadIdx.x & 31, first = begin + (end - begin) * slice / SLICES;
  int count = begin + (end - begin) * (slice + 1) / SLICES - first;
  __syncwarp();
  if (lane == 0) {
    signal(done, 1);
    await_alone(done, target);
  }
  __syncwarp();
  for (int e0 = 0; e0 < VALUES; e0 += AT_ONCE) {
    float parts[AT_ONCE][SLICES], add[AT_ONCE];
#pragma unroll
    for (int e = 0; e < AT_ONCE; e++) {
      int i = lane + (e0 + e) * 32, b = min(b0 + i / MOST, B - 1), n = min(first + i % MOST, N - 1);
      add[e] = wide(fresh2(residual[b] + n));
#pragma unroll
      for (int s = 0; s < SLICES; s++) parts[e][s] = fresh4(found + (s * B + b) * N + n);
    }
#pragma unroll
    for (int e = 0; e < AT_ONCE; e++) {
      int i = lane + (e0 + e) * 32, b = b0 + i / MOST, r = i % MOST;
      float value = add[e];
#pragma unroll
      for (int s = 0; s < SLICES; s++) value += parts[e][s];
      if (i / MOST < ROWS_EACH && b < B && r < count) y[b * N + first + r] = round16(value);
    }
  }
  return count;
}

// Adds the sums of a tile's chunks, finishes the numbers of this warp's rows and tells how many
// rows of the weight are done. scale: of the rows of a weight in 8 bits. found: of slices, and
// which of them are done.
template <Kind kind, int N, int K, int bits>
__device__ __forceinline__ void finish_tiles(Ring<SUMS>& sums, Shared& shared, int b0, int* after,
                                             const void* scale, const u16* bias,
                                             const Rows& residual, void* y, float* found = nullptr,
                                             int* done = nullptr, int target = 0) {
  typedef Share<kind, N, K, bits> Own;
  constexpr bool normed = is_normed(kind), in_slices = Own::PARTS > 1;
  constexpr int EACH = rows_of_tile(kind), NUMBERS = 16 * ROWS_EACH;
  constexpr int VALUES = (NUMBERS + 31) / 32;
  const Own share;
  int lane = threadIdx.x & 31;
  float of_norm[VALUES];
#pragma unroll 1
  for (int first = share.begin; first < share.end; first += EACH) {
    float sum[VALUES] = {}, add[VALUES] = {}, of_row[VALUES];
#pragma unroll 1
    for (int k = 0; k < share.columns; k += CHUNK(bits)) {
      sums.await_full();
      if (k == 0)
#pragma unroll
        for (int e = 0; e < VALUES; e++) {
          int i = lane + e * 32, b = min(b0 + i / 16, B - 1), r = i % 16;
          int n = min(first + r, N - 1);
          if (kind == OUT || (kind == DOWN && !in_slices)) add[e] = wide(fresh2(residual[b] + n));
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
        if (lane + e * 32 < NUMBERS)
          sum[e] += shared.sums[sums.place * SUM_NUMBERS + b0 * 16 + lane + e * 32];
      __syncwarp();
      if (lane == 0) arrive(sums.empty + sums.place);
      sums.next(1);
    }
#pragma unroll
    for (int e = 0; e < VALUES; e++) {
      int i = lane + e * 32, b = b0 + i / 16, r = i % 16;
      float value = bits == 8 ? sum[e] * of_row[e] : sum[e];
      if (normed) value *= of_norm[e];
      float up = __shfl_down_sync(~0u, value, 8);
      if (i >= NUMBERS || b >= B || first + r >= share.end) continue;
      if (kind == GATE_UP) {
        if (r < 8) ((u16*)y)[b * FFN + first + r] = round16(value / (1.f + __expf(-value)) * up);
      } else if (kind == HEAD) {
        ((float*)y)[(long long)b * VOCAB + first + r] = value;
      } else if (in_slices) {
        found[(share.slice * B + b) * N + first + r] = value;
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
  } else if (kind != HEAD && share.end > share.begin) {
    int rows = share.end - share.begin;
    if (in_slices)
      rows = join_slices<N, Own::GROUPS>(b0, found, share.begin, share.end, share.slice,
                                         done + share.group, target, residual, (u16*)y);
    __syncwarp();
    if (lane == 0) signal(after, rows);
  }
}
