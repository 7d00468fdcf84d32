// What a CUDA kernel takes for granted, for one thread of a CPU: every lane is a fiber with a stack
// of its own, and gives way to the next wherever it waits for others. x86-64.

#include <sys/mman.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(threads, blocks)

struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(8) uint2 { uint32_t x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) float2 { float x, y; };
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

template <class T> T min(T a, T b) { return a < b ? a : b; }
template <class T> T max(T a, T b) { return a > b ? a : b; }
template <class T> T __ldcs(const T* p) { return *p; }
inline float __expf(float x) { return expf(x); }
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
inline float __uint_as_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  uint64_t both = (uint64_t)b << 32 | a, result = 0;
  for (int i = 0; i < 4; i++) result |= (both >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
  return result;
}

struct Index { int x, y, z; };
struct Gate { int arrived = 0, generation = 0; };
struct Warp {
  Gate gate;
  uint32_t in[32][10], out[32][4];
};
struct Block {
  char* shared;
  Warp warps[32];
  Gate all, some;
};
struct Lane {
  void* stack;
  bool ended;
  Index thread, block;
  Block* of;
  Warp* warp;
  int number;
};
static Lane* now;
static void* main_stack;
static long progress;  // rounds of all lanes without any are a deadlock
static Index gridDim;
#define threadIdx (now->thread)
#define blockIdx (now->block)

extern "C" void switch_stacks(void** from, void* to);
asm(".globl switch_stacks\n"
    "switch_stacks:\n"
    "push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
    "mov %rsp, (%rdi); mov %rsi, %rsp\n"
    "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp; ret\n");
__attribute__((noinline)) static void give_way() {
  Lane* lane = now;
  switch_stacks(&lane->stack, main_stack);
}

// The last of `count` lanes to come does what is to be done for all.
template <class F> void meet(Gate& gate, int count, F&& at_end) {
  int generation = gate.generation;
  progress++;
  if (++gate.arrived == count) {
    at_end();
    gate = {0, generation + 1};
  }
  while (gate.generation == generation) give_way();
}
// What lanes of a warp do together: from numbers of all to numbers of all.
template <class F> const uint32_t* together(const void* numbers, int bytes, F&& of_warp) {
  Warp& warp = *now->warp;
  memcpy(warp.in[now->number], numbers, bytes);
  meet(warp.gate, 32, [&] { of_warp(warp.in, warp.out); });
  return warp.out[now->number];
}
template <class T, class F> T shuffled(T value, F&& source) {
  auto move = [&](auto& in, auto& out) {
    for (int i = 0; i < 32; i++) out[i][0] = in[source(i)][0];
  };
  memcpy(&value, together(&value, 4, move), 4);
  return value;
}
template <class T> T __shfl_xor_sync(uint32_t, T value, int by) {
  return shuffled(value, [=](int i) { return i ^ by; });
}
template <class T> T __shfl_down_sync(uint32_t, T value, int by) {
  return shuffled(value, [=](int i) { return i + by < 32 ? i + by : i; });
}
template <class T> T __shfl_sync(uint32_t, T value, int from) {
  return shuffled(value, [=](int) { return from; });
}
inline void __syncwarp() { meet(now->warp->gate, 32, [] {}); }
inline void __syncthreads() { meet(now->of->all, THREADS, [] {}); }

// Runs `kernel` on all lanes of a grid; 1 when they wait for one another for ever.
static void (*entry)();
inline int run_lanes(void (*kernel)(), int blocks, int shared_bytes) {
  entry = kernel;
  gridDim = {blocks, 1, 1};
  const size_t stack_bytes = 48 << 10, count = (size_t)blocks * THREADS;
  char* stacks = (char*)mmap(nullptr, count * stack_bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  std::vector<Block> of(blocks);
  std::vector<Lane> lanes(count);
  for (auto& block : of) {
    block.shared = (char*)aligned_alloc(1024, (shared_bytes + 1023) / 1024 * 1024);
    memset(block.shared, 0xff, shared_bytes);  // not numbers
  }
  for (size_t i = 0; i < count; i++) {
    int block = i / THREADS, thread = i % THREADS;
    void** top = (void**)(stacks + (i + 1) * stack_bytes - 64);
    *--top = nullptr;
    *--top = (void*)+[] {
      entry();
      now->ended = true;
      progress++;
      give_way();
    };
    lanes[i] = {top - 6, false, {thread, 0, 0}, {block, 0, 0}, &of[block],
                &of[block].warps[thread / 32], thread % 32};
  }
  size_t left = count;
  for (int round = 0, idle = 0; left && idle < 24; round++, idle++) {
    long before = progress;
    for (auto& lane : lanes) {
      if (lane.ended || round % (1 + lane.block.x % 3)) continue;  // blocks of unequal speed
      now = &lane;
      switch_stacks(&main_stack, lane.stack);
      left -= lane.ended;
    }
    if (progress != before) idle = 0;
  }
  for (auto& block : of) free(block.shared);
  munmap(stacks, count * stack_bytes);
  return left != 0;
}
