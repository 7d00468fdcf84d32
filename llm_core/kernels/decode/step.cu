// One decode step of a Llama-type model, by one block on every multiprocessor that stays for all of
// it.
//
// Copying warps stream the block's share of all weights in the order of use and never wait for
// activations, so memory works on while the others wait for the results of other blocks, which they
// learn of by counters in memory. Every block has the same share of every product.

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    decode_step(const Layer* layers, const Model* model_at, const State* state_at) {
  extern __shared__ __align__(128) char memory[];
  // Addresses that are needed now and then would take registers.
  Model& model = *(Model*)(memory + 1024 - sizeof(Model));
  State& state = *(State*)(memory + 1024 - sizeof(Model) - sizeof(State));
  u64* barriers = (u64*)memory;
  Shared shared;
  shared.x = (u16*)(memory + 1024);
  shared.sums = (float*)(memory + 1024 + X_BYTES);
  shared.squares = shared.sums + SUMS * SUM_NUMBERS;
  shared.of_x = shared.squares + WARPS * B;
  shared.places = memory + 1024 + SCRATCH_BYTES;
  Ring<STAGES> ring = {barriers, barriers + STAGES, 0, 0};
  Ring<SUMS> sums = {barriers + 2 * STAGES, barriers + 2 * STAGES + SUMS, 0, 0};
  if (threadIdx.x == 0) {
    model = *model_at;
    state = *state_at;
    for (int i = 0; i < 2 * (STAGES + SUMS); i++)
      init_barrier(barriers + i, i < 2 * STAGES + SUMS ? 1 : FINISHERS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  int warp = threadIdx.x >> 5;
  int *joined = state.counters + LAYERS * EACH_LAYER, *ended = joined + B * G, *sliced = ended + 1;
  Rows x = {model.embedding, state.ids, DIM};
  const Rows later_x = {state.x, nullptr, DIM}, x1 = {state.x1, nullptr, DIM};
  const Rows mixed = {state.mixed, nullptr, H * D}, hidden = {state.hidden, nullptr, FFN};
  // Registers go from the warps that copy to those that multiply.
  if (warp >= WARPS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
    int order = warp - WARPS, b0 = 8 * (order - PRODUCERS);
    if (b0 >= B) return;
    if (order < PRODUCERS) {
      u64 policy;
      asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
      int mine = order;
      ring.next(mine);
      Pace pace = {ring, PACE};
      for (int l = 0; l < LAYERS; l++) {
        stream<QKV, QKV_ROWS, DIM, BITS>(ring, pace, shared.places, mine, layers[l].qkv, policy);
        stream<OUT, DIM, H * D, BITS>(ring, pace, shared.places, mine, layers[l].out, policy);
        stream<GATE_UP, FFN, DIM, BITS>(ring, pace, shared.places, mine, layers[l].gate_up, policy);
        stream<DOWN, DIM, FFN, BITS>(ring, pace, shared.places, mine, layers[l].down, policy);
      }
      stream<HEAD, VOCAB, DIM, HEAD_BITS>(ring, pace, shared.places, mine, model.head, policy);
    } else {
      for (int l = 0; l < LAYERS; l++) {
        const Layer& layer = layers[l];
        int* done = state.counters + l * EACH_LAYER;
        finish_tiles<QKV, QKV_ROWS, DIM, BITS>(sums, shared, b0, done, layer.qkv.scale,
                                               layer.qkv_bias, x, state.qkv);
        finish_tiles<OUT, DIM, H * D, BITS>(sums, shared, b0, done + G + 1, layer.out.scale,
                                            nullptr, x, state.x1);
        finish_tiles<GATE_UP, FFN, DIM, BITS>(sums, shared, b0, done + G + 2, layer.gate_up.scale,
                                              nullptr, x, state.hidden);
        finish_tiles<DOWN, DIM, FFN, BITS>(sums, shared, b0, done + G + 3, layer.down.scale,
                                           nullptr, x1, state.x, state.slices, sliced,
                                           (l + 1) * SLICES * FINISHERS);
        x = later_x;
      }
      finish_tiles<HEAD, VOCAB, DIM, HEAD_BITS>(sums, shared, b0, nullptr, model.head.scale,
                                                nullptr, x, state.logits);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    int mine = warp;
    ring.next(mine);
    sums.next(mine);
    for (int l = 0; l < LAYERS; l++) {
      const Layer& layer = layers[l];
      int* done = state.counters + l * EACH_LAYER;
      multiply_tiles<QKV, QKV_ROWS, DIM, BITS>(ring, sums, shared, mine, l ? done - 1 : nullptr,
                                               DIM * FINISHERS, x, layer.attention_norm);
      attend(layer, model, state, (float*)shared.x, done, joined, done + G);
      multiply_tiles<OUT, DIM, H * D, BITS>(ring, sums, shared, mine, done + G, B * G, mixed,
                                            nullptr);
      multiply_tiles<GATE_UP, FFN, DIM, BITS>(ring, sums, shared, mine, done + G + 1,
                                              DIM * FINISHERS, x1, layer.ffn_norm);
      multiply_tiles<DOWN, DIM, FFN, BITS>(ring, sums, shared, mine, done + G + 2, FFN * FINISHERS,
                                           hidden, nullptr);
      x = later_x;
    }
    multiply_tiles<HEAD, VOCAB, DIM, HEAD_BITS>(ring, sums, shared, mine, joined - 1,
                                                DIM * FINISHERS, x, model.norm);
    // The last block to end leaves counters of zero.
    sync_consumers();
    int* is_last = (int*)shared.x;
    if (threadIdx.x == 0) *is_last = count_in(ended) == BLOCKS - 1;
    sync_consumers();
    if (*is_last)
      for (int i = threadIdx.x; i < COUNTERS; i += CONSUMERS) state.counters[i] = 0;
  }
}
