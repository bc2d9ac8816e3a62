// Fused CPU kernels of a decoder: norms, rotary embedding, SwiGLU, argmax; each is one pass over memory.
//
// Plain C++ that the compiler vectorizes for the CPU of this machine. bf16 is stored as 16 bits; arithmetic is in float
// and rounds where the layers of transformers round, so that a fused step gives the same numbers. Nothing here allocates
// for the caller, throws, or depends on Python.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <omp.h>
#include <utility>
#include <vector>
#ifdef __AVX512F__
#include <immintrin.h>
#endif
#ifdef __AMX_INT8__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

struct bf16 {
    uint16_t bits;
};

inline float to_float(float x) { return x; }

inline float to_float(bf16 x) {
    uint32_t wide = static_cast<uint32_t>(x.bits) << 16;
    float out;
    std::memcpy(&out, &wide, sizeof out);
    return out;
}

template <typename T> T from_float(float x);

template <> inline float from_float<float>(float x) { return x; }

template <> inline bf16 from_float<bf16>(float x) {  // to nearest, ties to even; NaN stays NaN
    uint32_t wide;
    std::memcpy(&wide, &x, sizeof wide);
    uint32_t rounded = (wide + 0x7fff + ((wide >> 16) & 1)) >> 16;
    return {static_cast<uint16_t>(x != x ? 0x7fc0 : rounded)};
}

template <typename T> inline float rounded(float x) { return to_float(from_float<T>(x)); }

// e^x within one or two units in the last place, as arithmetic that vectorizes (the C library's does not).
inline float exponential(float x) {
    x = std::min(88.0f, std::max(-87.0f, x));
    const float whole = std::floor(x * 1.442695041f + 0.5f);
    const float rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    float out = 1.9875691500e-4f;
    out = out * rest + 1.3981999507e-3f;
    out = out * rest + 8.3334519073e-3f;
    out = out * rest + 4.1665795894e-2f;
    out = out * rest + 1.6666665459e-1f;
    out = out * rest + 5.0000001201e-1f;
    out = out * rest * rest + rest + 1.0f;
    int32_t bits = (static_cast<int32_t>(whole) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return out * power;
}

constexpr long SMALL = 1 << 14;  // elements; below this a second thread costs more than it saves
constexpr long SMALL_PRODUCT = SMALL * 8;  // the same for a matrix product, in multiplications
constexpr long AHEAD = 32;  // cache lines of a weight that are requested before they are needed

// Parallel for loop, if there is enough work: starting threads alone takes a microsecond.
template <typename Run> void each(long count, bool is_large, const Run &run) {
    if (!is_large || omp_in_parallel() || omp_get_max_threads() == 1) {
        for (long i = 0; i < count; ++i) run(i);
        return;
    }
#pragma omp parallel for schedule(dynamic, 1)
    for (long i = 0; i < count; ++i) run(i);
}

// RMS norm: x / rms(x), rounded, times weight. With `more`, of x + more, which is written to `sum_out` (residual add).
template <typename T>
void rms_norm(T *out, T *sum_out, const T *x, const T *more, const T *weight, long rows, long size, float epsilon) {
    each(rows, rows * size > SMALL, [=](long row) {
        const T *from = x + row * size;
        if (more != nullptr) {
            T *to = sum_out + row * size;
            for (long i = 0; i < size; ++i) to[i] = from_float<T>(to_float(from[i]) + to_float(more[row * size + i]));
            from = to;
        }
        float sum = 0;
        for (long i = 0; i < size; ++i) sum += to_float(from[i]) * to_float(from[i]);
        const float scale = 1.0f / std::sqrt(sum / size + epsilon);
        for (long i = 0; i < size; ++i)
            out[row * size + i] = from_float<T>(rounded<T>(to_float(from[i]) * scale) * to_float(weight[i]));
    });
}

// SwiGLU: silu of the first half of each row times its second half.
template <typename T> void silu_mul(T *out, const T *x, long rows, long size) {
    each(rows, rows * size > SMALL, [=](long row) {
        const T *gate = x + row * 2 * size, *up = gate + size;
        for (long i = 0; i < size; ++i) {
            const float g = to_float(gate[i]);
            const float activated = rounded<T>(g / (1.0f + exponential(-g)));
            out[row * size + i] = from_float<T>(activated * to_float(up[i]));
        }
    });
}

// Rotary embedding: rotates the halves of each head by the angles of its token. x is [tokens, heads, size] with rows of `stride`.
template <typename T>
void rotate(T *out, const T *x, const T *cosines, const T *sines, long tokens, long heads, long size, long stride) {
    const long half = size / 2;
    each(tokens, tokens * heads * size > SMALL, [=](long token) {
        for (long head = 0; head < heads; ++head) {
            const T *from = x + token * stride + head * size;
            const T *c = cosines + token * size, *s = sines + token * size;
            T *to = out + (token * heads + head) * size;
            for (long i = 0; i < half; ++i) {
                const float low = to_float(from[i]), high = to_float(from[i + half]);
                to[i] = from_float<T>(rounded<T>(low * to_float(c[i])) + rounded<T>(-high * to_float(s[i])));
                to[i + half] =
                    from_float<T>(rounded<T>(high * to_float(c[i + half])) + rounded<T>(low * to_float(s[i + half])));
            }
        }
    });
}

inline uint32_t magnitude(float x) {  // by its bits: with -ffinite-math-only the compiler assumes that there is no NaN and no infinity
    uint32_t wide;
    std::memcpy(&wide, &x, sizeof wide);
    return wide & 0x7fffffff;
}

inline bool is_nan(float x) { return magnitude(x) > 0x7f800000; }

inline bool is_wrong(float x) { return magnitude(x) >= 0x7f800000; }

// The first maximum of each row, or its first NaN; returns the number of rows where it is not finite.
template <typename T> long argmax(int64_t *out, const T *x, long rows, long size, long stride) {
    constexpr long BLOCK = 1024;  // the block with the maximum is searched again for its index
    long wrong = 0;
#pragma omp parallel for reduction(+ : wrong) if (rows * size > SMALL)
    for (long row = 0; row < rows; ++row) {
        const T *from = x + row * stride;
        float most = 0;
        long where = -1;
        for (long first = 0; first < size; first += BLOCK) {
            const long last = std::min(size, first + BLOCK);
            float block = to_float(from[first]);
            int bad = 0;
            for (long i = first; i < last; ++i) {
                const float value = to_float(from[i]);
                block = value > block ? value : block;
                bad |= is_nan(value);
            }
            if (!bad && where >= 0 && !(block > most)) continue;
            for (where = first; bad ? !is_nan(to_float(from[where])) : to_float(from[where]) != block;) ++where;
            most = block;
            if (bad) break;
        }
        out[row] = where;
        wrong += is_wrong(to_float(from[where]));
    }
    return wrong;
}

// A vector of sixteen floats.
typedef float Lanes __attribute__((vector_size(64)));
constexpr long WIDE = 16;

inline Lanes load(const float *from) {
    Lanes out;
    std::memcpy(&out, from, sizeof out);
    return out;
}

inline Lanes load(const bf16 *from) {
    typedef uint16_t Half __attribute__((vector_size(32)));
    typedef uint32_t Whole __attribute__((vector_size(64)));
    Half half;
    std::memcpy(&half, from, sizeof half);
#ifdef __AVX512F__  // one instruction; the compiler generates four
    const Whole whole = (Whole)_mm512_cvtepu16_epi32((__m256i)half);
#else
    const Whole whole = __builtin_convertvector(half, Whole);
#endif
    return (Lanes)(whole << 16);
}

// Partial load of the last lanes: lanes beyond the end are zero, and no memory beyond it is read.
#ifdef __AVX512BW__
inline __mmask16 mask_of(long left) { return left >= WIDE ? 0xffff : left > 0 ? (1u << left) - 1 : 0; }

inline Lanes load(const float *from, long left) { return (Lanes)_mm512_maskz_loadu_ps(mask_of(left), from); }

inline Lanes load(const bf16 *from, long left) {
    return (Lanes)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask_of(left), from)), 16);
}
#else
template <typename T> inline Lanes load(const T *from, long left) {
    if (left >= WIDE) return load(from);
    T padded[WIDE] = {};
    if (left > 0) std::memcpy(padded, from, left * sizeof(T));
    return load(padded);
}
#endif

#include "linear.h"

#include "attention.h"

#include "layers.h"

#include "dense.h"

#include "blocks.h"

#include "int8.h"

#include "low_rank.h"

}  // namespace

#define EXPORT(T, NAME)                                                                                                \
    extern "C" void rms_norm_##NAME(T *out, T *sum_out, const T *x, const T *more, const T *weight, long rows,         \
                                    long size, float epsilon) {                                                        \
        rms_norm(out, sum_out, x, more, weight, rows, size, epsilon);                                                  \
    }                                                                                                                  \
    extern "C" void silu_mul_##NAME(T *out, const T *x, long rows, long size) { silu_mul(out, x, rows, size); }        \
    extern "C" long argmax_##NAME(int64_t *out, const T *x, long rows, long size, long stride) {                       \
        return argmax(out, x, rows, size, stride);                                                                     \
    }                                                                                                                  \
    extern "C" void rotate_##NAME(T *out, const T *x, const T *cosines, const T *sines, long tokens, long heads,       \
                                  long size, long stride) {                                                            \
        rotate(out, x, cosines, sines, tokens, heads, size, stride);                                                   \
    }                                                                                                                  \
    extern "C" void linear_##NAME(T *out, const T *x, const T *tiles, const T *bias, long rows, long size,              \
                                  long columns) {                                                                      \
        const T *none = nullptr;                                                                                       \
        linear(out, x, tiles, bias, none, rows, size, columns, false);                                                 \
    }                                                                                                                  \
    extern "C" void run_layers_##NAME(T *hidden, const Layer<T> *layers, long count, T *cache, const T *cosines,         \
                                      const T *sines, const Sizes *sizes, long start) {                                \
        run_layers(hidden, layers, count, cache, cosines, sines, *sizes, start);                                        \
    }                                                                                                                  \
    extern "C" void run_blocks_##NAME(T *x, const Block<T> *blocks, long count, const Rotations<T> *by,                     \
                                      const KVCache<T> *shared, const KVCache<T> *cache, const Stage *stage) {                \
        run_blocks(x, blocks, count, *by, *shared, *cache, *stage);                                                     \
    }                                                                                                                  \
    extern "C" void linear_int8_##NAME(T *out, const T *x, const int8_t *weight, const float *scales, const T *bias,   \
                                       long rows, long size, long columns, long depth) {                  \
        linear_int8(out, x, weight, scales, bias, rows, size, columns, depth);                                         \
    }                                                                                                                  \
    extern "C" void add_low_rank_##NAME(T *out, const T *x, const int64_t *adapters, const LowRank<T> *updates,        \
                                        long parts, long rows, long size, long columns) {                              \
        add_low_rank(out, x, adapters, updates, parts, rows, size, columns);                                           \
    }                                                                                                                  \
    extern "C" void write_##NAME(T *keys, T *values, const T *key, const T *value, const int64_t *position,            \
                                 long tokens, long row, long key_stride, long value_stride) {                          \
        write(keys, values, key, value, position, tokens, row, key_stride, value_stride);                              \
    }                                                                                                                  \
    extern "C" void attend_##NAME(T *out, const T *query, const T *keys, const T *values, const Pages *pages,          \
                                  long heads, long key_heads, long size, long query_stride, float scale,               \
                                  long window) {                                                                       \
        attend(out, query, keys, values, *pages, {heads, key_heads, size, query_stride, scale, window});                 \
    }                                                                                                                  \
    extern "C" void attend_joined_##NAME(T *out, const T *joined, const T *cosines, const T *sines, T *keys,           \
                                         T *values, const Pages *pages, long heads, long key_heads, long size,         \
                                         float scale, long window) {                                                   \
        attend_joined(out, joined, cosines, sines, keys, values, *pages, heads, key_heads, size, scale, window);       \
    }

// The compiler runs once for each ELEMENT, bf16 and float, at the same time.
#define EXPORT_FOR(T) EXPORT(T, T)
EXPORT_FOR(ELEMENT)
