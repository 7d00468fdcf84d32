// What a thread multiplies of two rows of a weight, eight apart, and how.
//
// Whole numbers of up to seven bits become bfloat16 by an "or": 0x4300 | n is 128 + n. Signs and
// offsets are sums of their own, so no number is rounded.

// Masks in registers: an instruction takes one number of its own, and what the compiler knows it
// writes there again and again. The grid has one row.
struct Masks {
  u32 seven, sign, four;
  __device__ __forceinline__ Masks() {
    u32 one = gridDim.y;
    seven = 0x007f007fu * one;
    sign = 0x00800080u * one;
    four = 0x000f000fu * one;
  }
};

// A part is what four threads multiply together, COLUMNS of it; `at` is where the first row of this
// thread has it, x its activations: twice eight numbers of each tile of rows.
template <int bits>
struct Part;

template <>
struct Part<16> {
  static constexpr int COLUMNS = 64, GAP = 8;
  static __device__ __forceinline__ int column(int q) { return q * 16; }
  static __device__ __forceinline__ int byte(int q) { return column(q) * 2; }
  float sums[ROW_TILES][2][4] = {};

  __device__ __forceinline__ void add(const char* at, const uint4 (*x)[2], const Masks&) {
    const char* below = at + 8 * row_stride(16);
    uint4 upper[2] = {*(const uint4*)at, *(const uint4*)(at + GAP * 2)};
    uint4 lower[2] = {*(const uint4*)below, *(const uint4*)(below + GAP * 2)};
    const u32 *u = (const u32*)upper, *l = (const u32*)lower;
#pragma unroll
    for (int j = 0; j < 8; j += 2)
#pragma unroll
      for (int tile = 0; tile < ROW_TILES; tile++) {
        const u32* v = (const u32*)x[tile] + j;
        multiply(sums[tile][j / 2 % 2], u[j], l[j], u[j + 1], l[j + 1], v[0], v[1]);
      }
  }
  __device__ __forceinline__ void scale(const char*, int, const float*) {}
  __device__ __forceinline__ float total(int tile, int i) const {
    return sums[tile][0][i] + sums[tile][1][i];
  }
};

// Two's complement: 128 + seven bits, and -128 or -256 by the sign. Pairs are of columns two apart.
template <>
struct Part<8> {
  static constexpr int COLUMNS = 64, GAP = 8;
  static __device__ __forceinline__ int column(int q) { return q * 16; }
  static __device__ __forceinline__ int byte(int q) { return column(q); }
  float sums[ROW_TILES][2][4] = {};

  __device__ __forceinline__ void add(const char* at, const uint4 (*x)[2], const Masks& masks) {
    uint4 upper = *(const uint4*)at, lower = *(const uint4*)(at + 8 * row_stride(8));
    const u32 *u = (const u32*)&upper, *l = (const u32*)&lower;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      u32 w[4] = {u[i], l[i], u[i] >> 8, l[i] >> 8}, number[4], sign[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        number[j] = (w[j] & masks.seven) | 0x43004300u;
        sign[j] = (w[j] & masks.sign) | 0xc300c300u;
      }
#pragma unroll
      for (int tile = 0; tile < ROW_TILES; tile++) {
        const u32* v = (const u32*)x[tile] + 2 * i;
        multiply(sums[tile][0], number[0], number[1], number[2], number[3], v[0], v[1]);
        multiply(sums[tile][1], sign[0], sign[1], sign[2], sign[3], v[0], v[1]);
      }
    }
  }
  __device__ __forceinline__ void scale(const char*, int, const float*) {}
  __device__ __forceinline__ float total(int tile, int i) const {
    return sums[tile][0][i] + sums[tile][1][i];
  }
};

// One group: 136 + number. Sums of a group are scaled when it is over, and its offset meets the sum
// of its activations.
template <>
struct Part<4> {
  static constexpr int COLUMNS = GROUP, GAP = GROUP / 2;
  static __device__ __forceinline__ int column(int q) { return q * 8; }
  static __device__ __forceinline__ int byte(int q) { return column(q); }  // two columns each
  float sums[ROW_TILES][4], scaled[ROW_TILES][4] = {};

  __device__ __forceinline__ void add(const char* at, const uint4 (*x)[2], const Masks& masks) {
    uint2 upper = *(const uint2*)at, lower = *(const uint2*)(at + 8 * row_stride(4));
    const u32 *u = (const u32*)&upper, *l = (const u32*)&lower;
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
      for (int i = 0; i < 4; i++) sums[tile][i] = 0.f;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        u32 w[4] = {u[i] >> (4 * half), l[i] >> (4 * half), u[i] >> (4 * half + 8),
                    l[i] >> (4 * half + 8)};
#pragma unroll
        for (int j = 0; j < 4; j++) w[j] = (w[j] & masks.four) | 0x43004300u;
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; tile++) {
          const u32* v = (const u32*)&x[tile][half] + 2 * i;
          multiply(sums[tile], w[0], w[1], w[2], w[3], v[0], v[1]);
        }
      }
  }
  // scales: of the first row of this thread, each with its offset; of_x: sums of activations of
  // each group, [groups, B].
  __device__ __forceinline__ void scale(const char* scales, int group, const float* of_x) {
    int first = 2 * (threadIdx.x & 3);
#pragma unroll
    for (int row = 0; row < 2; row++) {
      u32 both = ((const u32*)(scales + row * 8 * row_stride(4)))[group];
      float step = low(both), offset = high(both) - 136.f * step;
#pragma unroll
      for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
        for (int i = 0; i < 2; i++)
          scaled[tile][2 * row + i] +=
              step * sums[tile][2 * row + i] + offset * of_x[min(tile * 8 + first + i, B - 1)];
    }
  }
  __device__ __forceinline__ float total(int tile, int i) const { return scaled[tile][i]; }
};

// Eight activations in the order of pairs of weights: in 8 and 4 bits, columns 0, 2, 1, 3 of four.
template <int bits>
__device__ __forceinline__ uint4 paired(uint4 x) {
  if (bits == 16) return x;
  return make_uint4(__byte_perm(x.x, x.y, 0x5410), __byte_perm(x.x, x.y, 0x7632),
                    __byte_perm(x.z, x.w, 0x5410), __byte_perm(x.z, x.w, 0x7632));
}
