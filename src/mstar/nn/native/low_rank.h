// LoRA: low-rank updates of the result of a matrix product, included by kernels.cpp.
//
// Each row of a batch can have another adapter, or none. A row is computed by itself, in a fixed order, so that its
// result does not depend on other rows.

// Update of some columns of a product: x first^T second. Rank 0: none.
template <typename T> struct LowRank {
    const T *first;   // [rank, size]
    const T *second;  // [rank, columns], with the scale of the adapter
    long rank;
    long start;  // first of its columns
    long columns;
};

// Dot products of x with COUNT rows of a matrix, which share the reads of x.
template <typename T, int COUNT> void dot_rows(float *out, const T *x, const T *rows, long size) {
    Lanes sum[COUNT] = {};
    const long whole = size / WIDE * WIDE;
    for (long k = 0; k < whole; k += WIDE) {
        const Lanes own = load(x + k);
        for (int row = 0; row < COUNT; ++row) sum[row] = multiply_add(own, load(rows + row * size + k), sum[row]);
    }
    if (whole < size) {
        const Lanes own = load(x + whole, size - whole);
        for (int row = 0; row < COUNT; ++row) sum[row] += own * load(rows + row * size + whole, size - whole);
    }
    for (int row = 0; row < COUNT; ++row) {
        float total = 0;
        for (int i = 0; i < WIDE; ++i) total += sum[row][i];
        out[row] = total;
    }
}

// Adds the rows of a matrix, each times a factor, to PARTS * 16 columns, of which `left` exist.
template <typename T, int PARTS>
void add_columns(T *out, const float *factors, const T *rows, long rank, long pitch, long left) {
    Lanes sum[PARTS];
    for (int part = 0; part < PARTS; ++part)
        sum[part] = PARTS > 1 ? load(out + part * WIDE) : load(out, left);
    for (long row = 0; row < rank; ++row)
        for (int part = 0; part < PARTS; ++part) {
            const T *from = rows + row * pitch + part * WIDE;
            sum[part] = multiply_add(factors[row] - Lanes{}, PARTS > 1 ? load(from) : load(from, left), sum[part]);
        }
    for (long i = 0; i < std::min(PARTS * WIDE, left); ++i) out[i] = from_float<T>(sum[i / WIDE][i % WIDE]);
}

template <typename T>
void add_low_rank(T *out, const T *x, const int64_t *adapters, const LowRank<T> *updates, long parts, long rows,
                  long size, long columns) {
    long work = 0;
    for (long row = 0; row < rows; ++row)
        for (long part = 0; adapters[row] >= 0 && part < parts; ++part) {
            const LowRank<T> &update = updates[adapters[row] * parts + part];
            work += update.rank * (size + update.columns);
        }
    each(rows, work > SMALL_PRODUCT, [=](long row) {
        static thread_local std::vector<float> factors;
        for (long part = 0; adapters[row] >= 0 && part < parts; ++part) {
            const LowRank<T> &update = updates[adapters[row] * parts + part];
            const T *from = x + row * size;
            factors.resize(update.rank);
            long done = 0;
            for (; done + 4 <= update.rank; done += 4)
                dot_rows<T, 4>(factors.data() + done, from, update.first + done * size, size);
            for (; done < update.rank; ++done) dot_rows<T, 1>(factors.data() + done, from, update.first + done * size, size);
            T *to = out + row * columns + update.start;
            long at = 0;
            for (; update.rank && at + 4 * WIDE <= update.columns; at += 4 * WIDE)
                add_columns<T, 4>(to + at, factors.data(), update.second + at, update.rank, update.columns, 4 * WIDE);
            for (; update.rank && at < update.columns; at += WIDE)
                add_columns<T, 1>(to + at, factors.data(), update.second + at, update.rank, update.columns,
                                  update.columns - at);
        }
    });
}
