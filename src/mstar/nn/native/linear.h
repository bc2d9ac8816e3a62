// Matrix products in float arithmetic for float and bf16, included by kernels.cpp.
//
// For few rows, where the product of a library is mostly overhead, and for bf16 on CPUs without bf16 instructions. Each
// result is one sum in a fixed order, so that the result of a row does not depend on other rows.

#ifdef __AVX512F__
constexpr int ROWS = 12;  // with two vectors of columns each, the sums fill the registers
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return (Lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#else
constexpr int ROWS = 3;
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return a * b + c; }
#endif
constexpr long COLUMNS = 2 * WIDE;  // of a tile, which is [depth][COLUMNS]; in bf16 the halves are interleaved
constexpr float NO_BIAS[COLUMNS] = {};

inline void load_pair(Lanes *pair, const float *from) {
    pair[0] = load(from);
    pair[1] = load(from + WIDE);
}

inline void load_pair(Lanes *pair, const bf16 *from) {
    typedef uint32_t Whole __attribute__((vector_size(64)));
    Whole both;
    std::memcpy(&both, from, sizeof both);
    pair[0] = (Lanes)(both << 16);
    pair[1] = (Lanes)(both & 0xffff0000);
}

// sums = x tile + bias for COUNT rows of x with this stride; if x is transposed, for columns.
template <typename T, bool IS_TRANSPOSED, int COUNT>
void multiply_tile(float *sums, const float *x, long stride, const T *tile, long size, const float *bias) {
    Lanes own[COUNT][2], start[2];
    load_pair(start, bias);
    for (int row = 0; row < COUNT; ++row)
        for (int half = 0; half < 2; ++half) own[row][half] = start[half];
    for (long k = 0; k < size; ++k) {
        Lanes pair[2];
        __builtin_prefetch(tile + (k + AHEAD) * COLUMNS);
        load_pair(pair, tile + k * COLUMNS);
        for (int row = 0; row < COUNT; ++row) {
            const Lanes value = (IS_TRANSPOSED ? x[k * stride + row] : x[row * stride + k]) - Lanes{};
            own[row][0] = multiply_add(value, pair[0], own[row][0]);
            own[row][1] = multiply_add(value, pair[1], own[row][1]);
        }
    }
    for (int row = 0; row < COUNT; ++row)
        for (int half = 0; half < 2; ++half) std::memcpy(sums + row * COLUMNS + half * WIDE, &own[row][half], sizeof(Lanes));
}

template <typename T> using MultiplyTile = void (*)(float *, const float *, long, const T *, long, const float *);

template <typename T, bool IS_TRANSPOSED, int... COUNT>
MultiplyTile<T> tile_of(long rows, std::integer_sequence<int, COUNT...>) {
    static constexpr MultiplyTile<T> all[] = {multiply_tile<T, IS_TRANSPOSED, COUNT + 1>...};
    return all[rows - 1];
}

inline const float *as_floats(const float *x, long, std::vector<float> &) { return x; }

inline const float *as_floats(const bf16 *x, long count, std::vector<float> &memory) {
    memory.resize(count);
    for (long i = 0; i < count; ++i) memory[i] = to_float(x[i]);
    return memory.data();
}

// x (1 + erf(x / sqrt 2)) / 2, to 1.5e-7 of x (Abramowitz and Stegun, 7.1.26).
inline float gelu(float x) {
    const float size = std::fabs(x), z = size * 0.70710678f, t = 1.0f / (1.0f + 0.3275911f * z);
    float sum = 1.061405429f;
    for (const float next : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) sum = sum * t + next;
    return 0.5f * (x + size * (1.0f - sum * t * exponential(-z * z)));
}

// Epilogue of a row: gelu, or the residual add.
template <typename T> void finish(T *out, const float *sums, const T *more, long count, bool has_gelu) {
    if (has_gelu)
        for (long i = 0; i < count; ++i) out[i] = from_float<T>(gelu(sums[i]));
    else if (more)
        for (long i = 0; i < count; ++i) out[i] = from_float<T>(sums[i] + to_float(more[i]));
    else
        for (long i = 0; i < count; ++i) out[i] = from_float<T>(sums[i]);
}

// x weight + bias, then gelu, or `more` added to it. The weight is packed in tiles, padded with zeros.
template <typename T>
void linear(T *out, const T *x, const T *tiles, const T *bias, const T *more, long rows, long size, long columns,
            bool has_gelu) {
    static thread_local std::vector<float> memory;
    const float *wide = as_floats(x, rows * size, memory);
    each((columns + COLUMNS - 1) / COLUMNS, rows * size * columns > SMALL_PRODUCT, [=](long number) {
        const long first = number * COLUMNS, width = std::min(COLUMNS, columns - first);
        alignas(64) float sums[ROWS * COLUMNS], own_bias[COLUMNS] = {};
        for (long i = 0; bias && i < width; ++i) own_bias[i] = to_float(bias[first + i]);
        for (long top = 0; top < rows; top += ROWS) {
            const long height = std::min<long>(ROWS, rows - top);
            const auto multiply = tile_of<T, false>(height, std::make_integer_sequence<int, ROWS>());
            multiply(sums, wide + top * size, size, tiles + first * size, size, own_bias);
            for (long row = 0; row < height; ++row) {
                const long at = (top + row) * columns + first;
                const T *own_more = more ? more + at : nullptr;
                if (width == COLUMNS)
                    finish(out + at, sums + row * COLUMNS, own_more, COLUMNS, has_gelu);
                else
                    finish(out + at, sums + row * COLUMNS, own_more, width, has_gelu);
            }
        }
    });
}
