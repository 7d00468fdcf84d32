// Names and shapes of the decode step. `step.py` puts the numbers of a model before this text:
// LAYERS, H query heads, G key/value heads, D head dimension, DIM, FFN, FFN_BLOCK, VOCAB; BITS of
// the weights of layers and HEAD_BITS of the head; B rows (sequences), BLOCKS of the grid, SPLITS
// blocks that share a head, SLICES blocks that share rows of the down projection, TABLE and
// BLOCK_TOKENS of the cache, STAGES places of the ring and their bytes, EPSILON, SCALE_LOG2, bytes
// of memory; and its own: THREADS, WARPS that multiply, PRODUCERS that copy, SUMS places for sums
// of chunks, UNROLL parts of a chunk; on the way at once ROWS_AT_ONCE of activations and PACE
// chunks of a warp.
//
// A tile is 16 rows of a weight, a chunk ROW_BYTES of each of them, which is one place of the ring.

typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;

#define HG (H / G)
#define CONSUMERS (WARPS * 32)
#define CHUNK(bits) (ROW_BYTES * 8 / (bits))  // columns
#define GROUP 64                              // columns that share a scale in int4
#define ROW_TILES ((B + 7) / 8)               // a product of tensor cores has eight columns
#define FINISHERS ROW_TILES                   // warps that add up, each for a tile
#define ROWS_EACH (B < 8 ? B : 8)
#define SUM_NUMBERS (128 * (ROW_TILES - 1) + 16 * ROWS_EACH)

// From row to row of a place (bytes) and of activations (columns), such that what threads read
// together is in different banks.
__host__ __device__ constexpr int row_stride(int bits) {
  return bits == 16 ? ROW_BYTES + 16 : bits == 8 ? ROW_BYTES + 64 : ROW_BYTES + 128 + 32;
}
__host__ __device__ constexpr int x_stride(int columns, int bits) {
  return columns + (bits == 4 ? 32 : 8);
}

struct Weight {
  const char* numbers;
  const void* scale;  // float32 of each row (int8), bfloat16 and offset of each group (int4)
};

struct Layer {
  Weight qkv, out, gate_up, down;
  const u16 *attention_norm, *ffn_norm, *qkv_bias, *q_norm, *k_norm;
  u16 *keys, *values;  // [blocks, BLOCK_TOKENS, G, D]
};

struct Model {
  const u16 *embedding, *norm;
  Weight head;
  const float* cos_sin;  // [positions, 2, D / 2]
};

struct State {
  const long long* ids;                // [B]
  const int* lengths;                  // [B] tokens in the cache
  const int* tables;                   // [B, TABLE] blocks
  u16 *x, *x1, *qkv, *mixed, *hidden;  // [B, ...]
  float *part, *part_ml;               // [B, G, SPLITS, HG, D], [B, G, SPLITS, 2, HG]
  float* slices;                       // [SLICES, B, DIM]
  float* logits;                       // [B, VOCAB]
  int* counters;                       // zeros between steps: [COUNTERS]
};

// Rows of activations: one after another, or those of some ids in a table.
struct Rows {
  const u16* first;
  const long long* ids;
  int width;
  __device__ __forceinline__ const u16* operator[](int b) const {
    return first + (ids ? ids[b] : b) * width;
  }
};

#define NOTHING -1e30f  // below every score, and finite: differences are numbers

enum Kind { QKV, OUT, GATE_UP, DOWN, HEAD };

#define QKV_ROWS ((H + 2 * G) * D)
#define GROUP_ROWS (QKV_ROWS / G)
// Counters of a layer: rows done of each group, heads attended, rows done of the other three. Each
// warp that adds up counts its own.
#define EACH_LAYER (G + 4)
// Those of layers, splits done of each head, blocks that ended, slices done.
#define COUNTERS (LAYERS * EACH_LAYER + B * G + 1 + BLOCKS)

// Row of the weight of gate and up, in blocks of channels: r is 0 to 7 for gate, 8 to 15 for up.
__device__ __forceinline__ long long row_of_channel(int channel, bool is_up) {
  return (long long)(channel / FFN_BLOCK) * 2 * FFN_BLOCK + channel % FFN_BLOCK +
         (is_up ? FFN_BLOCK : 0);
}
