// Attention of one new token per row over the blocks of its cache. The blocks of the GPU share the
// tokens of a key head, and the last to end joins what they found (split-K: Dao et al., 2023).

__device__ __forceinline__ void attend(const Layer& layer, const Model& model, const State& state,
                                       float* scratch, const int* before, int* joined, int* after) {
  // A block that has many tokens would delay what others wait for by asking for much at once.
  constexpr bool asks_early = SPLITS > 1;
  constexpr int STRIDE = LANES + 1;  // of turned heads, such that rows are in different banks
  int unit = blockIdx.x;
  if (unit >= B * G * SPLITS) return;
  int split = unit % SPLITS, group = unit / SPLITS % G, b = unit / SPLITS / G;
  int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, q = lane & 3;
  int length = state.lengths[b], each = (length + SPLITS * TILE - 1) / (SPLITS * TILE) * TILE;
  int begin = split * each, end = min(length, begin + each);
  // Heads of queries, then the key.
  int row = warp * 8 + g;
  bool turns = warp * 8 <= HG;
  float cosine[CHUNKS * 4], sine[CHUNKS * 4];
  if (turns)
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
      const float* at = model.cos_sin + (long long)length * D + (4 * (i / 2) + q) * 8 + i % 2 * 4;
      *(float4*)(cosine + i * 4) = *(const float4*)at;
      *(float4*)(sine + i * 4) = *(const float4*)(at + D / 2);
    }
  uint4 *keys = (uint4*)layer.keys, *values = (uint4*)layer.values;
  const u16* gain = row < HG ? layer.q_norm : layer.k_norm;
  Tokens tokens;
  int number = 0, blocks = 0;  // of the next tile of this warp; block of tile `lane` of 32
  auto place = [&](int& count) {
    int t = begin + (number * WARPS + warp) * TILE;
    if (number % 32 == 0) {
      int far = min(begin + ((number + lane) * WARPS + warp) * TILE, max(length - 1, 0));
      blocks = state.tables[b * TABLE + far / BLOCK_TOKENS];
    }
    int block = __shfl_sync(~0u, blocks, number % 32);
    number++;
    count = end - t;
    return ((block * BLOCK_TOKENS + t % BLOCK_TOKENS) * G + group) * LANES;
  };
  int count, at = place(count);
  // Earlier tokens are in the cache already.
  tokens.load_keys(keys + at, count, g, q);
  if (asks_early) tokens.load_values(values + at, count, g, q);
  float *parts = scratch, *marks = parts + WARPS * HG * D;  // [WARPS, HG, D], [2, WARPS, HG]
  float *newest_value = marks + 2 * WARPS * HG, *newest = newest_value + D;
  uint4* turned = (uint4*)(newest + (HG + 3) / 4 * 4);  // [HG + 1, STRIDE]
  await(before + group, GROUP_ROWS * FINISHERS);
  const uint4* from = (const uint4*)(state.qkv + (b * G + group) * (HG + 2) * D);
  int block = state.tables[b * TABLE + length / BLOCK_TOKENS];
  int to = ((block * BLOCK_TOKENS + length % BLOCK_TOKENS) * G + group) * LANES;
  bool has_newest = split == 0 && warp == WARPS - 1;
  if (has_newest && lane < LANES) {
    uint4 value = fresh16(from + (HG + 1) * LANES + lane);
    values[to + lane] = value;
    const u32* v = (const u32*)&value;
#pragma unroll
    for (int j = 0; j < 4; j++)
      ((float2*)newest_value)[lane * 4 + j] = make_float2(low(v[j]), high(v[j]));
  }
  if (turns) {
    uint4 chunks[CHUNKS];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
      chunks[i] = make_uint4(0, 0, 0, 0);
      if (row <= HG) chunks[i] = fresh16(from + row * LANES + 4 * i + q);
    }
    turn_head(chunks, gain, cosine, sine, q);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
      if (row <= HG) turned[row * STRIDE + 4 * i + q] = chunks[i];
      if (row == HG && split == 0) keys[to + 4 * i + q] = chunks[i];
    }
  }
  if (!asks_early) tokens.load_values(values + at, count, g, q);
  sync_consumers();
  uint4 heads[HEAD_TILES][CHUNKS];
#pragma unroll
  for (int tile = 0; tile < HEAD_TILES; tile++)
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
      heads[tile][i] = make_uint4(0, 0, 0, 0);
      if (tile * 8 + g < HG) heads[tile][i] = turned[(tile * 8 + g) * STRIDE + 4 * i + q];
    }
  if (has_newest)
#pragma unroll
    for (int tile = 0; tile < HEAD_TILES; tile++) {
      float score = 0.f;
#pragma unroll
      for (int i = 0; i < CHUNKS; i++) {
        uint4 key = turned[HG * STRIDE + 4 * i + q];
        const u32 *a = (const u32*)&heads[tile][i], *k = (const u32*)&key;
#pragma unroll
        for (int j = 0; j < 4; j++) score += low(a[j]) * low(k[j]) + high(a[j]) * high(k[j]);
      }
      score += __shfl_xor_sync(~0u, score, 1);
      score += __shfl_xor_sync(~0u, score, 2);
      if (q == 0 && tile * 8 + g < HG) newest[tile * 8 + g] = score * SCALE_LOG2;
    }
  Found found;
#pragma unroll
  for (int tile = 0; tile < HEAD_TILES; tile++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      found.most[tile][h] = NOTHING;
      found.total[tile][h] = 0.f;
    }
#pragma unroll
    for (int i = 0; i < CHUNKS / 2; i++)
#pragma unroll
      for (int j = 0; j < 4; j++)
#pragma unroll
        for (int k = 0; k < 4; k++) found.mixed[tile][i][j][k] = 0.f;
  }
  while (count > 0) {
    int now = count;
    at = place(count);
    float scores[HEAD_TILES][4];
#pragma unroll
    for (int tile = 0; tile < HEAD_TILES; tile++) tokens.score(heads[tile], scores[tile]);
    tokens.load_keys(keys + at, count, g, q);
#pragma unroll
    for (int tile = 0; tile < HEAD_TILES; tile++) {
      float* s = scores[tile];
      weigh(found, tile, s, now, g);
      tokens.mix(found.mixed[tile], transposed(pack(s[0], s[1])), transposed(pack(s[2], s[3])));
    }
    tokens.load_values(values + at, count, g, q);
  }
  // Threads of other tokens, then warps, then splits.
#pragma unroll
  for (int tile = 0; tile < HEAD_TILES; tile++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float total = found.total[tile][h];
#pragma unroll
      for (int i = 4; i < 32; i <<= 1) total += __shfl_xor_sync(~0u, total, i);
      int head = tile * 8 + 2 * q + h;
      if (head < HG && g == 0) {
        marks[warp * HG + head] = found.most[tile][h];
        marks[WARPS * HG + warp * HG + head] = total;
      }
#pragma unroll
      for (int i = 0; i < CHUNKS / 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j += 2)
          if (head < HG)
            *(float4*)(parts + (warp * HG + head) * D + (8 * i + g) * 8 + 2 * j) =
                make_float4(found.mixed[tile][i][j][h], found.mixed[tile][i][j][h + 2],
                            found.mixed[tile][i][j + 1][h], found.mixed[tile][i][j + 1][h + 2]);
    }
  sync_consumers();
  int cell = (b * G + group) * SPLITS + split;
  for (int i = tid; i < HG * D; i += CONSUMERS) {
    int h = i / D;
    float now = split == 0 ? newest[h] : NOTHING, all = 0.f, value = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) now = fmaxf(now, marks[w * HG + h]);
    if (split == 0) {
      all = exp2f(newest[h] - now);
      value = all * newest_value[i % D];
    }
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      float keep = exp2f(marks[w * HG + h] - now);
      all += keep * marks[WARPS * HG + w * HG + h];
      value += keep * parts[w * HG * D + i];
    }
    if (SPLITS == 1) {
      state.mixed[(b * G + group) * HG * D + i] = round16(value / all);
      continue;
    }
    state.part[(long long)cell * HG * D + i] = value;
    if (i % D == 0) {
      state.part_ml[cell * 2 * HG + h] = now;
      state.part_ml[cell * 2 * HG + HG + h] = all;
    }
  }
  sync_consumers();
  if (SPLITS > 1) {
    if (tid == 0) {
      bool is_last = count_in(joined + b * G + group) == SPLITS - 1;
      marks[0] = is_last;
      if (is_last) joined[b * G + group] = 0;
    }
    sync_consumers();
    if (marks[0] == 0.f) return;
    cell -= split;
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
  }
  if (tid == 0) signal(after, 1);
}
