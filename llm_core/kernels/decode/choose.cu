// Chooses the next token of every row, by the definitions of llm_core.infer.sampling: one block a
// row, nothing sorted. Thresholds of top-k and top-p are found byte by byte over numbers whose
// order as unsigned integers is that of the logits. Weights are added as whole numbers, so that the
// result does not depend on the order of threads.

typedef unsigned long long u64;
typedef unsigned int u32;

#define THREADS 1024
#define ONE 17592186044416.0  // 2^44: the weight of the likeliest token

struct Row {
  float temperature;
  float min_p;
  double top_p;
  long long top_k;
};

__device__ __forceinline__ u32 order_of(float x) {
  u32 bits = __float_as_uint(x + 0.f);  // -0 is 0
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float number_of(u32 order) {
  return __uint_as_float(order >> 31 ? order & 0x7fffffffu : ~order);
}

__device__ __forceinline__ u64 mix(u64 x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

// As llm_core.infer.streams.
__device__ __forceinline__ double uniform(u64 seed, u64 choice, u64 step) {
  const u64 golden = 0x9E3779B97F4A7C15ull;
  u64 mixed = mix(seed + golden);
  mixed = mix(mixed + choice * golden);
  mixed = mix(mixed + (step + 1) * golden);
  return (double)(mixed >> 12) * 2.220446049250313e-16;
}

struct Shared {
  u64 bins[256];
  u64 warps[32];
  u64 found[4];
};

// The sum of all threads, and of those before this one.
__device__ __forceinline__ u64 add_up(Shared& shared, u64 value, u64& before) {
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  u64 sum = value;
  for (int i = 1; i < 32; i <<= 1) {
    u64 other = __shfl_up_sync(~0u, sum, i);
    if (lane >= i) sum += other;
  }
  __syncthreads();
  if (lane == 31) shared.warps[warp] = sum;
  __syncthreads();
  u64 all = 0, earlier = 0;
  for (int w = 0; w < 32; w++) {
    if (w == warp) earlier = all;
    all += shared.warps[w];
  }
  before = earlier + sum - value;
  return all;
}

__device__ __forceinline__ u64 weight_of(u32 order, float best, float temperature) {
  return (u64)((double)expf((number_of(order) - best) / temperature) * ONE + 0.5);
}

// The largest threshold at or above which `wanted` is reached, counting 1 for a number or its
// weight; what lies above it comes back in `above`. Numbers below `least` do not count, and of
// those equal to it only `of_least`.
template <bool by_weight>
__device__ u32 threshold(Shared& shared, const float* logits, int vocab, u64 wanted, u32 least,
                         u64 of_least, float best, float temperature, u64& above) {
  u32 prefix = 0;
  above = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    __syncthreads();
    if (threadIdx.x < 256) shared.bins[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < vocab; i += THREADS) {
      u32 order = order_of(logits[i]);
      bool counts = by_weight ? order > least : true;
      if (counts && (shift == 24 || order >> (shift + 8) == prefix >> (shift + 8))) {
        u64 by = by_weight ? weight_of(order, best, temperature) : 1;
        if (by) atomicAdd(&shared.bins[order >> shift & 255], by);
      }
    }
    if (by_weight && threadIdx.x == 0 && of_least &&
        (shift == 24 || least >> (shift + 8) == prefix >> (shift + 8)))
      atomicAdd(&shared.bins[least >> shift & 255], of_least);
    __syncthreads();
    if (threadIdx.x == 0) {
      u64 sum = above;
      int bin = 255;
      while (bin > 0 && sum + shared.bins[bin] < wanted) sum += shared.bins[bin--];
      shared.found[0] = sum;
      shared.found[1] = bin;
    }
    __syncthreads();
    above = shared.found[0];
    prefix |= (u32)shared.found[1] << shift;
  }
  return prefix;
}

// lengths, steps and told tokens move on; an id that is none becomes 0, which an embedding has.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    choose_tokens(const float* all_logits, const float* temperatures, const long long* top_ks,
                  const double* top_ps, const float* min_ps, const long long* seeds,
                  const long long* choices, long long* steps, long long* ids, int* lengths,
                  long long* told, int* num_told, int vocab, int most_told) {
  __shared__ Shared shared;
  int b = blockIdx.x, tid = threadIdx.x;
  const float* logits = all_logits + (long long)b * vocab;
  Row row = {temperatures[b], min_ps[b], top_ps[b], top_ks[b]};
  if (tid < 4) shared.found[tid] = tid == 2 ? 0 : ~0ull;
  __syncthreads();
  u32 most = 0;
  bool is_broken = false;
  for (int i = tid; i < vocab; i += THREADS) {
    float x = logits[i];
    is_broken |= x != x;
    most = max(most, order_of(x));
  }
  is_broken = __syncthreads_or(is_broken);
  most = __reduce_max_sync(~0u, most);
  if ((tid & 31) == 0) atomicMax(&shared.found[2], (u64)most);
  __syncthreads();
  most = (u32)shared.found[2];
  float best = number_of(most);
  is_broken |= (__float_as_uint(best) & 0x7f800000u) == 0x7f800000u;
  long long chosen = -1;
  if (!is_broken && row.temperature == 0.f) {
    u32 first = ~0u;
    for (int i = tid; i < vocab; i += THREADS)
      if (order_of(logits[i]) == most) first = min(first, (u32)i);
    first = __reduce_min_sync(~0u, first);
    if ((tid & 31) == 0) atomicMin(&shared.found[3], (u64)first);
    __syncthreads();
    chosen = (long long)shared.found[3];
  } else if (!is_broken) {
    u32 least = 0;
    u64 above = 0, spare = ~0ull;  // of numbers equal to the threshold, the first by id
    if (row.top_k > 0 && row.top_k < vocab) {
      least = threshold<false>(shared, logits, vocab, (u64)row.top_k, 0, 0, best, row.temperature,
                               above);
      spare = (u64)row.top_k - above;
    }
    int each = (vocab + THREADS - 1) / THREADS;
    int begin = min(tid * each, vocab), end = min(begin + each, vocab);
    if (row.top_p < 1.0) {
      u64 mine = 0, before, equal = weight_of(least, best, row.temperature);
      u64 of_least = spare == ~0ull ? 0 : spare * equal;
      for (int i = begin; i < end; i++) {
        u32 order = order_of(logits[i]);
        if (order > least) mine += weight_of(order, best, row.temperature);
      }
      u64 mass = add_up(shared, mine, before) + of_least;
      double share = row.top_p * (double)mass;
      u64 wanted = max((u64)ceil(share), (u64)1);
      u32 limit = threshold<true>(shared, logits, vocab, wanted, least, of_least, best,
                                  row.temperature, above);
      u64 unit = weight_of(limit, best, row.temperature);
      u64 count = unit ? (wanted - min(above, wanted) + unit - 1) / unit : 1;
      count = max(count, (u64)(above == 0));
      spare = limit == least ? min(spare, count) : count;
      least = limit;
    }
    u64 ties = 0, rank, mine = 0, before;
    for (int i = begin; i < end; i++) ties += order_of(logits[i]) == least;
    add_up(shared, ties, rank);
    auto kept = [&](int i, u64& rank) -> u64 {
      u32 order = order_of(logits[i]);
      if (order < least || (order == least && rank++ >= spare)) return 0;
      u64 weight = weight_of(order, best, row.temperature);
      return (double)weight >= (double)row.min_p * ONE ? weight : 0;
    };
    u64 own = rank;
    for (int i = begin; i < end; i++) mine += kept(i, own);
    u64 all = add_up(shared, mine, before);
    double u = uniform((u64)seeds[b], (u64)choices[b], (u64)steps[b]);
    u64 target = min((u64)(u * (double)all), all - 1);
    if (before <= target && target < before + mine) {
      u64 sum = before;
      for (int i = begin; i < end; i++) {
        sum += kept(i, rank);
        if (sum > target) {
          shared.found[3] = (u64)i;
          break;
        }
      }
    }
    __syncthreads();
    chosen = (long long)shared.found[3];
  }
  if (tid == 0) {
    told[(long long)b * most_told + num_told[b]] = chosen;
    num_told[b] += 1;
    ids[b] = chosen < 0 ? 0 : chosen;
    lengths[b] += 1;
    steps[b] += 1;
  }
}
