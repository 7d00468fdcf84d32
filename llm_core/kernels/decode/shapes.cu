// Names and shapes of the decode step. `step.py` puts the numbers of a model before this text:
// LAYERS, H query heads, G key/value heads, D head dimension, DIM, FFN, FFN_BLOCK, VOCAB; B rows
// (sequences), SPLITS blocks that share a head, TABLE and BLOCK_TOKENS of the cache, STAGES places
// of the ring, AHEAD tokens that attention asks for at once, EPSILON, SCALE_LOG2, bytes of memory;
// and its own: THREADS, WARPS that multiply, PRODUCERS that copy, SUMS places for sums of chunks.
//
// A tile is 16 rows of a weight, a chunk CHUNK of its columns, which is one place of the ring.

typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;

#define HG (H / G)
#define CONSUMERS (WARPS * 32)
#define ROW_BYTES (CHUNK * 2 + 16)  // 16 more: rows begin in different banks
#define STAGE_BYTES (16 * ROW_BYTES)
#define LANES (D / 8)  // lanes of one token's head in attention, 8 numbers each
#define TOKENS (32 / LANES)

struct Layer {
  const u16 *attention_norm, *qkv, *qkv_bias, *q_norm, *k_norm, *out, *ffn_norm, *gate_up, *down;
  u16 *keys, *values;  // [blocks, BLOCK_TOKENS, G, D]
};

struct Model {
  const u16 *embedding, *norm, *head;
  const float* cos_sin;  // [positions, 2, D / 2]
};

struct State {
  const long long* ids;                // [B]
  const int* lengths;                  // [B] tokens in the cache
  const int* tables;                   // [B, TABLE] blocks
  u16 *x, *x1, *qkv, *mixed, *hidden;  // [B, ...]
  float *part, *part_ml;               // [B, G, SPLITS, HG, D], [B, G, SPLITS, 2, HG]
  float* logits;                       // [B, VOCAB]
  int* counters;                       // zeros between steps: [LAYERS, G + 4], [B, G], 1
};

#define NOTHING -1e30f  // below every score, and finite: differences are numbers

enum Kind { QKV, OUT, GATE_UP, DOWN, HEAD };

#define QKV_ROWS ((H + 2 * G) * D)
#define GROUP_ROWS (QKV_ROWS / G)
#define EACH_LAYER (G + 4)  // rows done of each group, heads attended, rows done of the other three
