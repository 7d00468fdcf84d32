// Chooses the next token of every row, by the definitions of llm_core.infer.choice.sampling: one
// block a row, nothing sorted. Thresholds are found over unsigned integers whose order is that of
// the logits: of top-k by counting some of their bits at a time, of top-p by halving. What top-k
// keeps becomes a list, so it has at most MAX_LISTED. Weights are added as whole numbers, so that
// the result does not depend on the order of threads.

typedef unsigned long long u64;
typedef unsigned int u32;

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

// As llm_core.infer.choice.streams.
__device__ __forceinline__ double uniform(u64 seed, u64 choice, u64 step) {
  const u64 golden = 0x9E3779B97F4A7C15ull;
  u64 mixed = mix(seed + golden);
  mixed = mix(mixed + choice * golden);
  mixed = mix(mixed + (step + 1) * golden);
  return (double)(mixed >> 12) * 2.220446049250313e-16;
}

struct Shared {
  u32 bins[2048];
  u64 warps[32];
  u64 found[4];
  u32 ids[MAX_LISTED];
  u32 orders[MAX_LISTED];
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
  u64 all = shared.warps[lane];
  for (int i = 1; i < 32; i <<= 1) {
    u64 other = __shfl_up_sync(~0u, all, i);
    if (lane >= i) all += other;
  }
  u64 earlier = __shfl_sync(~0u, all, max(warp - 1, 0));
  before = sum - value + (warp ? earlier : 0);
  return __shfl_sync(~0u, all, 31);
}

__device__ __forceinline__ u64 weight_of(u32 order, float best, float temperature) {
  return (u64)((double)expf((number_of(order) - best) / temperature) * ONE + 0.5);
}

// The largest number with `wanted` numbers at or above it; how many are above. 11, 11 and 10 bits
// at a time: the second and third time few numbers are left.
__device__ u32 nth_largest(Shared& shared, const float* logits, int vocab, u64 wanted, u64& above) {
  u32 prefix = 0;
  above = 0;
  for (int shift = 21; shift >= 0; shift -= shift == 21 ? 11 : 10) {
    for (int i = threadIdx.x; i < 2048; i += THREADS) shared.bins[i] = 0;
    __syncthreads();
    int done = shift == 0 ? 10 : shift == 10 ? 21 : 32;
    for (int i = threadIdx.x; i < vocab; i += THREADS) {
      u32 order = order_of(logits[i]);
      if (done == 32 || order >> done == prefix >> done)
        atomicAdd(&shared.bins[order >> shift & (shift ? 2047 : 1023)], 1u);
    }
    __syncthreads();
    int bin = 2047 - 2 * threadIdx.x;
    u32 high = shared.bins[bin], low = shared.bins[bin - 1];
    u64 before;
    add_up(shared, high + low, before);
    before += above;
    if (before < wanted && wanted <= before + high + low) {
      bool in_high = wanted <= before + high;
      shared.found[0] = before + (in_high ? 0 : high);
      shared.found[1] = in_high ? bin : bin - 1;
    }
    __syncthreads();
    above = shared.found[0];
    prefix |= (u32)shared.found[1] << shift;
  }
  return prefix;
}

// What may be drawn, in the order of ids: all, or a list of few.
struct Items {
  const float* logits;
  const u32 *ids, *orders;
  int count;
  __device__ __forceinline__ u32 order(int i) const {
    return orders ? orders[i] : order_of(logits[i]);
  }
  __device__ __forceinline__ u32 id(int i) const { return ids ? ids[i] : (u32)i; }
};

// The largest threshold at or above which the weights reach `wanted`, by halving; the weight above
// it.
__device__ u32 mass_threshold(Shared& shared, const Items& items, u64 wanted, u32 most, float best,
                              float temperature, u64& above) {
  // Weights at or above low reach it, those at or above high do not.
  u64 low = 0, high = (u64)most + 1, mass_of_high = 0, unused;
  while (high - low > 1) {
    u32 middle = (u32)((low + high) / 2);
    u64 mine = 0;
    for (int i = threadIdx.x; i < items.count; i += THREADS) {
      u32 order = items.order(i);
      if (order >= middle) mine += weight_of(order, best, temperature);
    }
    u64 mass = add_up(shared, mine, unused);
    if (mass >= wanted)
      low = middle;
    else {
      high = middle;
      mass_of_high = mass;
    }
  }
  above = mass_of_high;
  return (u32)low;
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
    u64 before, rank, unused;
    Items items = {logits, nullptr, nullptr, vocab};
    int each = (vocab + THREADS - 1) / THREADS;
    int begin = min(tid * each, vocab), end = min(begin + each, vocab);
    if (row.top_k > 0 && row.top_k < vocab) {
      u64 above, wanted = (u64)row.top_k;
      u32 least = nth_largest(shared, logits, vocab, wanted, above);
      u64 spare = wanted - above, ties = 0, own = 0;
      for (int i = begin; i < end; i++) {
        u32 order = order_of(logits[i]);
        ties += order == least;
        own += order > least;
      }
      add_up(shared, ties, rank);
      own += rank >= spare ? 0 : min(ties, spare - rank);
      items.count = (int)add_up(shared, own, before);
      for (int i = begin; i < end; i++) {
        u32 order = order_of(logits[i]);
        if (order < least || (order == least && rank++ >= spare)) continue;
        shared.ids[before] = (u32)i;
        shared.orders[before++] = order;
      }
      items.ids = shared.ids;
      items.orders = shared.orders;
      __syncthreads();
      each = (items.count + THREADS - 1) / THREADS;
      begin = min(tid * each, items.count);
      end = min(begin + each, items.count);
    }
    u32 least = 0;
    u64 spare = ~0ull;  // of numbers equal to the threshold, the first by id
    if (row.top_p < 1.0) {
      u64 mine = 0, above;
      for (int i = begin; i < end; i++) mine += weight_of(items.order(i), best, row.temperature);
      u64 mass = add_up(shared, mine, unused);
      u64 wanted = max((u64)ceil(row.top_p * (double)mass), (u64)1);
      least = mass_threshold(shared, items, wanted, most, best, row.temperature, above);
      u64 unit = weight_of(least, best, row.temperature);
      spare = unit ? (wanted - min(above, wanted) + unit - 1) / unit : 1;
    }
    u64 ties = 0, mine = 0;
    for (int i = begin; i < end; i++) ties += items.order(i) == least;
    add_up(shared, ties, rank);
    auto kept = [&](int i, u64& rank) -> u64 {
      u32 order = items.order(i);
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
          shared.found[3] = items.id(i);
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
