// messages.cu for a CPU: instructions of the GPU in their documented meaning (PTX ISA 8.5, 9.7).

inline float low(u32 pair) { return __uint_as_float(pair << 16); }
inline float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
inline u16 round16(float x) {  // to nearest, ties to even
  u32 bits;
  memcpy(&bits, &x, 4);
  return x != x ? 0x7fff : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}
inline u32 pack(float a, float b) { return round16(a) | (u32)round16(b) << 16; }
inline float wide(u16 a) { return __uint_as_float((u32)a << 16); }
inline u32 address(const void* p) { return (const char*)p - now->of->shared; }

inline void check_line(const void* p, int bytes) {
  if ((uintptr_t)p % 16 || bytes % 16) abort();  // as a GPU does
}
inline uint4 fresh16(const void* p) {
  check_line(p, 16);
  return *(const uint4*)p;
}
inline u16 fresh2(const u16* p) { return *p; }
inline float fresh4(const float* p) { return *p; }

struct Barrier {
  uint16_t missing, count;
  int missing_bytes : 31;
  u32 phase : 1;
  void settle(int arrived, int bytes) {
    if (arrived > missing) abort();
    missing -= arrived;
    missing_bytes += bytes;
    if (missing || missing_bytes) return;
    missing = count;
    phase ^= 1;
    progress++;
  }
};
inline void init_barrier(u64* b, int count) {
  *(Barrier*)b = {(uint16_t)count, (uint16_t)count, 0, 0};
}
inline void expect_bytes(u64* b, int bytes) { ((Barrier*)b)->settle(1, bytes); }
inline void arrive(u64* b) { ((Barrier*)b)->settle(1, 0); }
inline void wait_phase(u64* b, u32 parity) {
  while (((volatile Barrier*)b)->phase == parity) give_way();
}
inline void copy_row(u32 to, const void* from, int bytes, u64* b, u64) {
  check_line(from, bytes);
  check_line(now->of->shared + to, bytes);
  memcpy(now->of->shared + to, from, bytes);
  ((Barrier*)b)->settle(0, -bytes);
}
inline void sync_consumers() { meet(now->of->some, CONSUMERS, [] {}); }
inline void signal(int* counter, int by) {
  *counter += by;
  progress++;
}
inline void await_alone(const int* counter, int target) {
  while (*(const volatile int*)counter < target) give_way();
}
inline void await(const int* counter, int target) {
  if (threadIdx.x == 0) await_alone(counter, target);
  sync_consumers();
}
inline int count_in(int* counter) {
  progress++;
  return (*counter)++;
}

// m16n8k16: which lane has which numbers.
inline void multiply(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  u32 own[10] = {a0, a1, a2, a3, b0, b1};
  memcpy(own + 6, c, 16);
  auto product = [](auto& in, auto& out) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; lane++)
      for (int i = 0; i < 6; i++)
        for (int half = 0; half < 2; half++) {
          int g = lane / 4, k = 2 * (lane % 4) + half;
          float number = half ? high(in[lane][i]) : low(in[lane][i]);
          if (i < 4) a[g + i % 2 * 8][k + i / 2 * 8] = number;
          else b[k + (i - 4) * 8][g] = number;
        }
    for (int lane = 0; lane < 32; lane++)
      for (int i = 0; i < 4; i++) {
        float sum = __uint_as_float(in[lane][6 + i]);
        for (int k = 0; k < 16; k++)
          sum += a[lane / 4 + i / 2 * 8][k] * b[k][2 * (lane % 4) + i % 2];
        memcpy(&out[lane][i], &sum, 4);
      }
  };
  memcpy(c, together(own, sizeof own, product), 16);
}
inline u32 transposed(u32 pair) {
  auto turn = [](auto& in, auto& out) {
    auto at = [&](int row, int column) {
      return in[row * 4 + column / 2][0] >> column % 2 * 16 & 0xffffu;
    };
    for (int lane = 0; lane < 32; lane++) {
      int row = lane / 4, column = 2 * (lane % 4);
      out[lane][0] = at(column, row) | at(column + 1, row) << 16;
    }
  };
  return together(&pair, 4, turn)[0];
}
