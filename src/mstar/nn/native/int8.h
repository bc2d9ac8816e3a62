// Int8 matrix products (W8A8), included by kernels.cpp.
//
// With AMX or AVX-512 VNNI if the CPU has one of them, else the same sums by plain loops, which are slower than bf16.

// Quantizes part of a row to integers in [-127, 127] and returns its scale. With infinity or NaN in it, the integers are
// zeros and the scale is not finite, so that results are NaN.
template <typename T> float quantize(int8_t *out, const T *x, long size) {
    int32_t bits = 0;  // of the largest magnitude: these bits sort like the numbers, NaN last
    for (long i = 0; i < size; ++i) {
        const float value = to_float(x[i]);
        int32_t own;
        std::memcpy(&own, &value, sizeof own);
        bits = std::max(bits, own & 0x7fffffff);
    }
    float most;
    std::memcpy(&most, &bits, sizeof most);
    if (bits >= 0x7f800000 || most < 1e-30f) {  // the inverse of a tiny number would be infinite
        std::memset(out, 0, size);
    } else {
        const float inverse = 127.0f / most;
        for (long i = 0; i < size; ++i) out[i] = static_cast<int8_t>(std::nearbyint(to_float(x[i]) * inverse));
    }
    return most / 127.0f;
}

constexpr long TILE = 16, DEPTH = 64;  // a tile is 16 rows of 64 bytes: of x row by row, of a weight [DEPTH / 4][TILE][4]
constexpr long GROUP = 192;            // number of adjacent values in a row of x with one scale

// sums = x weight for `rows` rows of x, at most TILES * 16, and 32 columns, two rows of tiles, over `count` of a row's
// `size`.
#ifdef __AMX_INT8__
template <int TILES>
void multiply(int32_t *sums, const int8_t *x, const int8_t *weight, long, long count, long size) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long k = 0; k < count; k += DEPTH) {
        _tile_loadd(6, weight + k * TILE, DEPTH);
        _tile_loadd(7, weight + (size + k) * TILE, DEPTH);
        _tile_loadd(4, x + k, size);
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        if (TILES == 1) continue;
        _tile_loadd(5, x + TILE * size + k, size);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    constexpr long PITCH = 2 * TILE * sizeof(int32_t);
    _tile_stored(0, sums, PITCH);
    _tile_stored(1, sums + TILE, PITCH);
    if (TILES == 1) return;
    _tile_stored(2, sums + 2 * TILE * TILE, PITCH);
    _tile_stored(3, sums + 2 * TILE * TILE + TILE, PITCH);
}

struct Shape {  // of tile registers: the maximum
    uint8_t palette = 1, unused[15] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

struct Tiles {  // the tile registers of the CPU, for the lifetime of this object
    Tiles() {
        static const long denied = syscall(SYS_arch_prctl, 0x1023, 18);  // Linux requires one permission request
        static const Shape shape;
        if (!denied) _tile_loadconfig(&shape);
    }
    ~Tiles() { _tile_release(); }
};
#elif defined(__AVX512VNNI__)
// The instruction multiplies unsigned by signed integers. So 128 is added to x, and 128 times the sum of each column of
// the weight is subtracted from the result.
template <int ROWS>
void multiply_rows(int32_t *sums, const int8_t *x, const int8_t *weight, long count, long size) {
    alignas(64) uint8_t shifted[ROWS][GROUP];
    for (long row = 0; row < ROWS; ++row)
        for (long k = 0; k < count; ++k) shifted[row][k] = static_cast<uint8_t>(x[row * size + k]) ^ 0x80;
    __m512i own[ROWS][2] = {}, surplus[2] = {};
    const __m512i shift = _mm512_set1_epi8(static_cast<char>(0x80));
    for (long k = 0; k < count; k += 4) {
        __builtin_prefetch(weight + k * TILE + AHEAD * 64);
        __builtin_prefetch(weight + (size + k) * TILE + AHEAD * 64);
        const __m512i left = _mm512_loadu_si512(weight + k * TILE);
        const __m512i right = _mm512_loadu_si512(weight + (size + k) * TILE);
        surplus[0] = _mm512_dpbusd_epi32(surplus[0], shift, left);
        surplus[1] = _mm512_dpbusd_epi32(surplus[1], shift, right);
        for (long row = 0; row < ROWS; ++row) {
            int32_t four;
            std::memcpy(&four, shifted[row] + k, sizeof four);
            const __m512i values = _mm512_set1_epi32(four);
            own[row][0] = _mm512_dpbusd_epi32(own[row][0], values, left);
            own[row][1] = _mm512_dpbusd_epi32(own[row][1], values, right);
        }
    }
    for (long row = 0; row < ROWS; ++row)
        for (long half = 0; half < 2; ++half)
            _mm512_storeu_si512(sums + (2 * row + half) * TILE, _mm512_sub_epi32(own[row][half], surplus[half]));
}

template <int TILES>
void multiply(int32_t *sums, const int8_t *x, const int8_t *weight, long rows, long count, long size) {
    for (long row = 0; row < rows;) {
        const auto [step, run] = rows - row >= 8   ? std::pair{8, multiply_rows<8>}
                                 : rows - row >= 4 ? std::pair{4, multiply_rows<4>}
                                                   : std::pair{1, multiply_rows<1>};
        run(sums + 2 * row * TILE, x + row * size, weight, count, size);
        row += step;
    }
}

struct Tiles {};
#else
template <int TILES>
void multiply(int32_t *sums, const int8_t *x, const int8_t *weight, long rows, long count, long size) {
    for (long row = 0; row < rows; ++row)
        for (long half = 0; half < 2; ++half) {
            int32_t own[TILE] = {};
            for (long k = 0; k < count; k += 4)
                for (long column = 0; column < TILE; ++column)
                    for (long i = 0; i < 4; ++i)
                        own[column] += x[row * size + k + i] * weight[((half * size + k) * TILE) + column * 4 + i];
            std::memcpy(sums + (2 * row + half) * TILE, own, sizeof own);
        }
}

struct Tiles {};
#endif

// totals = x weight for these rows as floats: the sums of each group times its scales, [rows][groups].
template <int TILES>
void sum_groups(float *totals, const int8_t *x, const float *own, const int8_t *weight, long rows, long size, long groups) {
    constexpr long COUNT = 2 * TILE;
    alignas(64) int32_t sums[TILES * TILE * COUNT];
    for (long group = 0; group < groups; ++group) {
        const long first = group * GROUP;
        multiply<TILES>(sums, x + first, weight + first * TILE, rows, std::min(GROUP, size - first), size);
        for (long row = 0; row < rows; ++row)
            for (long i = 0; i < COUNT; ++i) {
                const float part = sums[row * COUNT + i] * own[row * groups + group];
                totals[row * COUNT + i] = group ? totals[row * COUNT + i] + part : part;
            }
    }
}

// x weight + bias in int8. The weight is packed in tiles, padded with zeros to `depth` and to pairs of tiles, with a
// scale per column.
template <typename T>
void linear_int8(T *out, const T *x, const int8_t *weight, const float *scales, const T *bias, long rows, long size,
                 long columns, long depth) {
    constexpr long WIDTH = 2 * TILE;
    const long padded = (rows + TILE - 1) / TILE * TILE, groups = (size + GROUP - 1) / GROUP;
    std::vector<Lanes> memory(padded * depth / DEPTH);  // for the alignment: rows of a tile are cache lines
    int8_t *quantized = reinterpret_cast<int8_t *>(memory.data());
    std::vector<float> own(rows * groups);
#pragma omp parallel if (rows * size * columns > SMALL_PRODUCT)
    {
#pragma omp for
        for (long row = 0; row < rows; ++row)
            for (long group = 0; group < groups; ++group) {
                const long first = group * GROUP;
                own[row * groups + group] =
                    quantize(quantized + row * depth + first, x + row * size + first, std::min(GROUP, size - first));
            }
        const Tiles tiles;
        alignas(64) float totals[WIDTH * WIDTH];
#pragma omp for
        for (long first = 0; first < columns; first += WIDTH)
            for (long top = 0; top < rows; top += WIDTH) {
                const auto run = padded - top > TILE ? sum_groups<2> : sum_groups<1>;
                const long height = std::min(WIDTH, rows - top), width = std::min(WIDTH, columns - first);
                const float *own_top = own.data() + top * groups;
                run(totals, quantized + top * depth, own_top, weight + first * depth, height, depth, groups);
                for (long row = 0; row < height; ++row)
                    for (long i = 0; i < width; ++i) {
                        const float sum = totals[row * WIDTH + i] * scales[first + i];
                        out[(top + row) * columns + first + i] =
                            from_float<T>(bias ? sum + to_float(bias[first + i]) : sum);
                    }
            }
    }
}
