// Numbers in 16 bits, and how threads and blocks wait for one another.

__device__ __forceinline__ float low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ u32 pack(float a, float b) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
  return r;
}
__device__ __forceinline__ u16 round16(float a) { return (u16)pack(a, 0.f); }
__device__ __forceinline__ float wide(u16 a) { return __uint_as_float((u32)a << 16); }

__device__ __forceinline__ u32 address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Activations are written by other blocks during the kernel, so they are read past the L1 cache.
__device__ __forceinline__ uint4 fresh16(const void* p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ u16 fresh2(const u16* p) {
  u16 v;
  asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ float fresh4(const float* p) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p));
  return v;
}

__device__ __forceinline__ void init_barrier(u64* b, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address(b)), "r"(count));
}
__device__ __forceinline__ void expect_bytes(u64* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(address(b)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void arrive(u64* b) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(address(b)) : "memory");
}
__device__ __forceinline__ void wait_phase(u64* b, u32 parity) {
  asm volatile(
      "{\n .reg .pred done;\n again:\n"
      " mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      " @!done bra again;\n}" ::"r"(address(b)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void copy_row(u32 to, const void* from, int bytes, u64* b, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(address(b)), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void sync_consumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
}
// Release: what this thread, and those it was synchronised with, wrote before is seen by whoever
// sees the count.
__device__ __forceinline__ void signal(int* counter, int by) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(counter), "r"(by) : "memory");
}
__device__ __forceinline__ void await_alone(const int* counter, int target) {
  int seen;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  } while (seen < target);
}
__device__ __forceinline__ void await(const int* counter, int target) {
  if (threadIdx.x == 0) await_alone(counter, target);
  sync_consumers();
}
// How many came before this one.
__device__ __forceinline__ int count_in(int* counter) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}
__device__ __forceinline__ void multiply(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// 8 x 8 numbers of 16 bits, of which each thread has two of a row.
__device__ __forceinline__ u32 transposed(u32 pair) {
  u32 r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
  return r;
}
