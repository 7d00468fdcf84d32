// Attention of one new token per row over the blocks of its cache. The blocks of the GPU share the
// tokens of a key head, and the last to end joins what they found (split-K: Dao et al., 2023).

__device__ __forceinline__ void unpack(uint4 v, float* x) {
  const u32* p = (const u32*)&v;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    x[2 * i] = low(p[i]);
    x[2 * i + 1] = high(p[i]);
  }
}

// A product of two heads whose numbers lie over LANES lanes, 8 each, is the sum of those of lanes.
__device__ __forceinline__ float product_of_numbers(const float* q, const float* k) {
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < 8; i++) sum += q[i] * k[i];
  return sum;
}
__device__ __forceinline__ float sum_of_lanes(float sum) {
#pragma unroll
  for (int i = LANES / 2; i; i >>= 1) sum += __shfl_xor_sync(~0u, sum, i);
  return sum;
}

// 8 numbers of a head: norm where the model has one, then the rotation of halves, rounded.
__device__ __forceinline__ void turn_head(float* x, const u16* gain, const float* cosine,
                                          const float* sine, int sub) {
  if (gain) {
    float square = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) square += x[i] * x[i];
    float scale = rsqrtf(sum_of_lanes(square) / D + EPSILON);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = wide(round16(x[i] * scale * wide(gain[sub * 8 + i])));
  }
  bool first = sub < LANES / 2;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    float other = __shfl_xor_sync(~0u, x[i], LANES / 2);
    x[i] = wide(round16(x[i] * cosine[i] + (first ? -other : other) * sine[i]));
  }
}

__device__ __forceinline__ void attend(const Layer& layer, const Model& model, const State& state,
                                       float* scratch, const int* before, int* joined, int* after) {
  int unit = blockIdx.x;
  if (unit >= B * G * SPLITS) return;
  int split = unit % SPLITS, group = unit / SPLITS % G, b = unit / SPLITS / G;
  int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, sub = lane % LANES, mine = lane / LANES;
  int length = state.lengths[b];
  float cosine[8], sine[8];
  {
    const float4* at =
        (const float4*)(model.cos_sin + (long long)length * D + (sub % (LANES / 2)) * 8);
    *(float4*)cosine = at[0];
    *(float4*)(cosine + 4) = at[1];
    *(float4*)sine = at[D / 8];
    *(float4*)(sine + 4) = at[D / 8 + 1];
  }
  int each = (length + SPLITS - 1) / SPLITS;
  int begin = split * each, end = min(length, begin + each);
  constexpr int ROUND = WARPS * TOKENS;
  uint4 keys[AHEAD], values[AHEAD];
  int place[AHEAD];  // of 16 bytes
  auto load_key = [&](int a, int t) {
    keys[a] = make_uint4(0, 0, 0, 0);
    if (t >= end) return;
    int block = state.tables[b * TABLE + t / BLOCK_TOKENS];
    place[a] = ((block * BLOCK_TOKENS + t % BLOCK_TOKENS) * G + group) * LANES + sub;
    keys[a] = ((const uint4*)layer.keys)[place[a]];
  };
  auto load_value = [&](int a, int t) {
    values[a] = t < end ? ((const uint4*)layer.values)[place[a]] : make_uint4(0, 0, 0, 0);
  };
  int first = begin + warp * TOKENS + mine;
#pragma unroll
  for (int a = 0; a < AHEAD; a++) {  // earlier tokens are there already
    load_key(a, first + a * ROUND);
    load_value(a, first + a * ROUND);
  }
  await(before + group, GROUP_ROWS);
  const u16* from = state.qkv + (b * G + group) * (HG + 2) * D + sub * 8;
  float q[HG][8], sum[HG][8], most[HG], total[HG];
  uint4 raw_q[HG];
#pragma unroll
  for (int h = 0; h < HG; h++) raw_q[h] = fresh16(from + h * D);
#pragma unroll
  for (int h = 0; h < HG; h++) {
    unpack(raw_q[h], q[h]);
    turn_head(q[h], layer.q_norm, cosine, sine, sub);
    most[h] = NOTHING;
    total[h] = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      q[h][i] *= SCALE_LOG2;
      sum[h][i] = 0.f;
    }
  }
  if (split == 0 && warp == 0) {  // the new token
    float k[8], v[8];
    unpack(fresh16(from + HG * D), k);
    uint4 raw = fresh16(from + (HG + 1) * D);
    unpack(raw, v);
    turn_head(k, layer.k_norm, cosine, sine, sub);
    if (mine == 0) {
      int block = state.tables[b * TABLE + length / BLOCK_TOKENS];
      long long to =
          (((long long)block * BLOCK_TOKENS + length % BLOCK_TOKENS) * G + group) * D + sub * 8;
      *(uint4*)(layer.keys + to) =
          make_uint4(pack(k[0], k[1]), pack(k[2], k[3]), pack(k[4], k[5]), pack(k[6], k[7]));
      *(uint4*)(layer.values + to) = raw;
    }
#pragma unroll
    for (int h = 0; h < HG; h++) {
      float score = sum_of_lanes(product_of_numbers(q[h], k));
      if (mine == 0) {
        most[h] = score;
        total[h] = 1.f;
#pragma unroll
        for (int i = 0; i < 8; i++) sum[h][i] = v[i];
      }
    }
  }
  for (int t0 = first; t0 - mine - warp * TOKENS < end; t0 += ROUND * AHEAD) {
    float scores[AHEAD][HG];
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      float k[8];
      unpack(keys[a], k);
      load_key(a, t0 + (a + AHEAD) * ROUND);
#pragma unroll
      for (int h = 0; h < HG; h++) scores[a][h] = product_of_numbers(q[h], k);
    }
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
#pragma unroll
      for (int h = 0; h < HG; h++) {
        scores[a][h] = sum_of_lanes(scores[a][h]);
        if (t0 + a * ROUND >= end) scores[a][h] = 2.f * NOTHING;
      }
#pragma unroll
    for (int h = 0; h < HG; h++) {
      float now = most[h];
#pragma unroll
      for (int a = 0; a < AHEAD; a++) now = fmaxf(now, scores[a][h]);
      float keep = exp2f(most[h] - now);
      most[h] = now;
      total[h] *= keep;
#pragma unroll
      for (int i = 0; i < 8; i++) sum[h][i] *= keep;
#pragma unroll
      for (int a = 0; a < AHEAD; a++) total[h] += scores[a][h] = exp2f(scores[a][h] - now);
    }
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      float v[8];
      unpack(values[a], v);
      load_value(a, t0 + (a + AHEAD) * ROUND);
#pragma unroll
      for (int h = 0; h < HG; h++)
#pragma unroll
        for (int i = 0; i < 8; i++) sum[h][i] += scores[a][h] * v[i];
    }
  }
  // Lanes that hold other tokens of the same numbers, then warps, then splits.
  float *parts = scratch, *marks = scratch + WARPS * HG * D;
#pragma unroll
  for (int h = 0; h < HG; h++) {
#pragma unroll
    for (int i = LANES; i < 32; i <<= 1) {
      float other = __shfl_xor_sync(~0u, most[h], i);
      float now = fmaxf(most[h], other);
      float keep = exp2f(most[h] - now);
      total[h] *= keep;
      total[h] += __shfl_xor_sync(~0u, total[h], i);
#pragma unroll
      for (int j = 0; j < 8; j++) {
        sum[h][j] *= keep;
        sum[h][j] += __shfl_xor_sync(~0u, sum[h][j], i);
      }
      most[h] = now;
    }
    if (mine == 0) {
#pragma unroll
      for (int i = 0; i < 8; i++) parts[(warp * HG + h) * D + sub * 8 + i] = sum[h][i];
      if (sub == 0) {
        marks[warp * HG + h] = most[h];
        marks[WARPS * HG + warp * HG + h] = total[h];
      }
    }
  }
  sync_consumers();
  int cell = (b * G + group) * SPLITS + split;
  for (int i = tid; i < HG * D; i += CONSUMERS) {
    int h = i / D;
    float now = NOTHING, all = 0.f, value = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) now = fmaxf(now, marks[w * HG + h]);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      float keep = exp2f(marks[w * HG + h] - now);
      all += keep * marks[WARPS * HG + w * HG + h];
      value += keep * parts[w * HG * D + i];
    }
    state.part[(long long)cell * HG * D + i] = value;
    if (i % D == 0) {
      state.part_ml[cell * 2 * HG + h] = now;
      state.part_ml[cell * 2 * HG + HG + h] = all;
    }
  }
  sync_consumers();
  if (tid == 0) {
    int arrived;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
                 : "=r"(arrived)
                 : "l"(joined + b * G + group)
                 : "memory");
    marks[0] = arrived == SPLITS - 1;
    if (arrived == SPLITS - 1) joined[b * G + group] = 0;
  }
  sync_consumers();
  if (marks[0] == 0.f) return;
  cell = (b * G + group) * SPLITS;
  constexpr int NUMBERS = (HG * D + CONSUMERS - 1) / CONSUMERS;
  float theirs[NUMBERS][SPLITS];
#pragma unroll
  for (int n = 0; n < NUMBERS; n++)
#pragma unroll
    for (int s = 0; s < SPLITS; s++) {
      int i = tid + n * CONSUMERS;
      theirs[n][s] = i < HG * D ? fresh4(state.part + (long long)(cell + s) * HG * D + i) : 0.f;
    }
  for (int i = tid; i < 2 * HG * SPLITS; i += CONSUMERS)
    parts[i] = fresh4(state.part_ml + cell * 2 * HG + i);
  sync_consumers();
#pragma unroll
  for (int n = 0; n < NUMBERS; n++) {
    int i = tid + n * CONSUMERS, h = min(i / D, HG - 1);
    float now = NOTHING, all = 0.f, value = 0.f;
#pragma unroll
    for (int s = 0; s < SPLITS; s++) now = fmaxf(now, parts[s * 2 * HG + h]);
#pragma unroll
    for (int s = 0; s < SPLITS; s++) {
      float keep = exp2f(parts[s * 2 * HG + h] - now);
      all += keep * parts[s * 2 * HG + HG + h];
      value += keep * theirs[n][s];
    }
    if (i < HG * D) state.mixed[(b * G + group) * HG * D + i] = round16(value / all);
  }
  sync_consumers();
  if (tid == 0) signal(after, 1);
}
