// Mean and variance of every row's scores, without the scores: sum_j x_j and sum_j x_j x_j^T tell them for all slots
// before a chunk, and only those of the row's own chunk are multiplied one by one. A task is a head.
//
// Slots are taken less the first visible one, the origin, so that what they have in common costs no digits. With
// S1 = sum_j y_i . (x_j - origin) and S2 the sum of its squares over the n slots that row i sees:
//
//   mean = scale (S1 / n + y_i . origin)        variance = scale^2 (S2 / n - (S1 / n)^2)
#pragma once

constexpr int64_t CHUNK = 96;  // slots, and rows, taken at a time; a multiple of ROWS and of WIDTH

// Matrices of one head, rows `stride` apart and zero beyond `width`, so that blocks may stick out.
struct MomentBuffers {
    int64_t width, stride;
    float *form, *line, *origin, *slots, *rows, *transposed, *products, *result;
    float* n;                   // how many slots each row of a chunk sees, at least 1
    float *d_sums, *d_squares;  // the gradients of S1 and S2 of every row

    MomentBuffers(Scratch& scratch, const Moments& moments)
        : width(moments.width), stride(round_up(moments.width, WIDTH) + WIDTH) {
        form = scratch.take((width + ROWS) * stride);
        line = scratch.take(stride);
        origin = scratch.take(stride);
        slots = scratch.take(CHUNK * stride);
        rows = scratch.take(CHUNK * stride);
        transposed = scratch.take(CHUNK * width);
        products = scratch.take(CHUNK * CHUNK);
        result = scratch.take(CHUNK * stride);
        n = scratch.take(CHUNK);
        const int64_t kept = moments.backward() ? moments.queries : 0;
        d_sums = scratch.take(kept);
        d_squares = scratch.take(kept);
    }
    void clear() const {
        std::memset(form, 0, sizeof(float) * (width + ROWS) * stride);
        std::memset(line, 0, sizeof(float) * stride);
    }
};

inline int64_t moment_floats(const Moments& moments) {
    Scratch counted;
    MomentBuffers(counted, moments);
    return counted.used();
}

// The first visible slot; zeros where there is none.
INLINE void load_origin(const Moments& moments, const MomentBuffers& buffers, int64_t b, int64_t h) {
    int64_t first = 0;
    while (first < moments.slots && !moments.visible(b, first)) ++first;
    std::memset(buffers.origin, 0, sizeof(float) * buffers.stride);
    if (first < moments.slots) std::memcpy(buffers.origin, moments.x.at(b, h, first), sizeof(float) * buffers.width);
}

// Queries begin .. begin + count; the rest of the buffer is zero.
INLINE void load_rows(const Moments& moments, const MomentBuffers& buffers, int64_t b, int64_t h, int64_t begin,
                      int64_t count) {
    float* to = buffers.rows;
    for (int64_t i = 0; i < CHUNK; ++i, to += buffers.stride) {
        if (i < count) std::memcpy(to, moments.y.at(b, h, begin + i), sizeof(float) * buffers.width);
        const int64_t empty = i < count ? buffers.width : 0;
        std::memset(to + empty, 0, sizeof(float) * (buffers.stride - empty));
    }
}

// Slots first .. first + count less the origin; hidden ones and the rest of the buffer are zero.
INLINE void load_slots(const Moments& moments, const MomentBuffers& buffers, int64_t b, int64_t h, int64_t first,
                       int64_t count) {
    float* to = buffers.slots;
    for (int64_t j = 0; j < CHUNK; ++j, to += buffers.stride) {
        int64_t c = 0;
        if (j < count && moments.visible(b, first + j)) {
            const float* from = moments.x.at(b, h, first + j);
            for (; c + LANES <= buffers.width; c += LANES) store(to + c, load(from + c) - load(buffers.origin + c));
            for (; c < buffers.width; ++c) to[c] = from[c] - buffers.origin[c];
        }
        std::memset(to + c, 0, sizeof(float) * (buffers.stride - c));
    }
}

// form += sum over the first `count` rows of a_i b_i^T; where that is symmetric, the panels left of the diagonal's may be
// left out.
template <bool Upper>
INLINE void add_products(const MomentBuffers& buffers, const float* a, const float* b, int64_t count) {
    const int64_t stride = buffers.stride;
    for (int64_t r = 0; r < buffers.width; r += ROWS)
        for (int64_t column = Upper ? r / WIDTH * WIDTH : 0; column < buffers.width; column += WIDTH) {
            float* to = buffers.form + r * stride + column;
            Block block = load_block(to, stride);
            multiply(block, a + r, 1, stride, b + column, stride, count);
            store_block(to, stride, block);
        }
}

// line += sum over the first `count` rows, times their factors unless null
INLINE void add_line(const MomentBuffers& buffers, const float* rows, int64_t count, const float* factors) {
    for (int64_t column = 0; column < buffers.stride; column += LANES) {
        Vector sum = load(buffers.line + column);
        for (int64_t i = 0; i < count; ++i)
            sum += load(rows + i * buffers.stride + column) * (factors == nullptr ? 1.0f : factors[i]);
        store(buffers.line + column, sum);
    }
}

// result = rows times form, a chunk of them; of the upper panels alone, a vector whose product with the row is the same.
template <bool Upper>
INLINE void times_form(const MomentBuffers& buffers, const float* rows, int64_t count) {
    const int64_t stride = buffers.stride;
    for (int64_t column = 0; column < buffers.width; column += WIDTH) {
        const int64_t right = column + WIDTH < buffers.width ? column + WIDTH : buffers.width;
        const int64_t above = Upper ? column : 0, end = Upper ? right : buffers.width;
        for (int64_t r = 0; r < count; r += ROWS) {
            const float* from = rows + r * stride;
            Block block = zero_block();
            if (Upper) {  // what lies above the diagonal's panel stands for its mirror image, too
                multiply(block, from, stride, 1, buffers.form + column, stride, above);
                for (int i = 0; i < ROWS; ++i) block.at[i][0] += block.at[i][0], block.at[i][1] += block.at[i][1];
            }
            multiply(block, from + above, stride, 1, buffers.form + above * stride + column, stride, end - above);
            store_block(buffers.result + r * stride + column, stride, block);
        }
    }
}

// Panels of WIDTH slots that a chunk of `slots` fills, the last one perhaps in part.
INLINE int64_t panels(int64_t slots) { return (slots + WIDTH - 1) / WIDTH; }

// products[i][j] = y_i . x_j where row i sees slot j of the chunk, else 0, in the panels of its slots. Row i sees the first
// seen + i slots.
INLINE void own_products(const MomentBuffers& buffers, int64_t rows, int64_t seen, int64_t slots) {
    for (int64_t panel = 0; panel < panels(slots); ++panel) {
        float* to = buffers.transposed + panel * buffers.width * WIDTH;
        const float* from = buffers.slots + panel * WIDTH * buffers.stride;
        for (int64_t j = 0; j < WIDTH; ++j)
            for (int64_t p = 0; p < buffers.width; ++p) to[p * WIDTH + j] = from[j * buffers.stride + p];
    }
    for (int64_t panel = 0; panel < panels(slots); ++panel)
        for (int64_t r = 0; r < rows; r += ROWS) {
            Block block = zero_block();
            if (panel * WIDTH < seen + r + ROWS - 1)
                multiply(block, buffers.rows + r * buffers.stride, buffers.stride, 1,
                         buffers.transposed + panel * buffers.width * WIDTH, WIDTH, buffers.width);
            int32_t visible[ROWS];
            for (int i = 0; i < ROWS; ++i) visible[i] = r + i < rows ? static_cast<int32_t>(seen + r + i) : 0;
            hide(block, visible, static_cast<int32_t>(panel * WIDTH));
            store_block(buffers.products + r * CHUNK + panel * WIDTH, CHUNK, block);
        }
}

// Rows whose last visible slot lies in the chunk that begins at slot `first`, and how many of its slots the first sees.
struct OwnRows {
    int64_t begin, count, seen;

    OwnRows(const Moments& moments, int64_t first) {
        const int64_t offset = moments.slots - moments.queries;  // slots that even the first row has behind it
        begin = first - offset > 0 ? first - offset : 0;
        const int64_t end = first + CHUNK - offset < moments.queries ? first + CHUNK - offset : moments.queries;
        count = end > begin ? end - begin : 0;
        seen = begin + offset + 1 - first;
    }
};

INLINE int64_t up_to(int64_t first, int64_t all) { return all - first < CHUNK ? all - first : CHUNK; }

INLINE float at_least_one(int64_t count) { return static_cast<float>(count > 0 ? count : 1); }

// Calls visit(begin, count, seen, first, slots) for rows in `buffers.rows`, when form and line hold the slots before `first` and
// `buffers.slots` the chunk of `slots` that begins there, of which the rows see `seen` and on; where `slots` is 0, form and
// line hold all they see.
// Of form only the upper panels where these will do.
template <bool Upper, class Visit>
INLINE void for_rows(const Moments& moments, const MomentBuffers& buffers, int64_t b, int64_t h, const Visit& visit) {
    int64_t visible = 0;  // slots before the chunk
    buffers.clear();
    load_origin(moments, buffers, b, h);
    for (int64_t first = 0; first < moments.slots; first += CHUNK) {
        const int64_t count = up_to(first, moments.slots);
        load_slots(moments, buffers, b, h, first, count);
        if (moments.causal) {
            const OwnRows own(moments, first);
            if (own.count > 0) {
                int64_t behind = visible;
                for (int64_t j = 0; j < own.seen - 1 + own.count; ++j) {
                    behind += moments.visible(b, first + j);
                    if (j >= own.seen - 1) buffers.n[j - own.seen + 1] = at_least_one(behind);
                }
                load_rows(moments, buffers, b, h, own.begin, own.count);
                visit(own.begin, own.count, own.seen, first, count);
            }
        }
        add_products<Upper>(buffers, buffers.slots, buffers.slots, count);
        add_line(buffers, buffers.slots, count, nullptr);
        for (int64_t j = first; j < first + count; ++j) visible += moments.visible(b, j);
    }
    if (moments.causal) return;
    for (int64_t i = 0; i < CHUNK; ++i) buffers.n[i] = at_least_one(visible);
    for (int64_t begin = 0; begin < moments.queries; begin += CHUNK) {
        const int64_t count = up_to(begin, moments.queries);
        load_rows(moments, buffers, b, h, begin, count);
        visit(begin, count, 0, 0, 0);
    }
}

// S1 and S2 of row i of the chunk, its own products being known where it has any.
struct RowSums {
    float sum, square;

    // `slots` of the row's own chunk, 0 where its products are not known.
    INLINE RowSums(const MomentBuffers& buffers, int64_t i, int64_t slots) {
        Vector sums{}, squares{};
        for (int64_t j = 0; j < panels(slots) * WIDTH; j += LANES) {
            const Vector product = load(buffers.products + i * CHUNK + j);
            sums += product;
            squares += product * product;
        }
        const int64_t wide = buffers.stride - WIDTH;
        const float* y = buffers.rows + i * buffers.stride;
        sum = dot(y, buffers.line, wide) + total(sums);
        square = dot(y, buffers.result + i * buffers.stride, wide) + total(squares);
    }
};

// How many deviations the level of a row that sees n slots lies above its mean.
INLINE float deviations(const Moments& moments, float n) {
    const double chance = moments.chance == 0 ? 0.0 : moments.chance * std::sqrt(2 * std::log(static_cast<double>(n)));
    return static_cast<float>(moments.spread + chance);
}

INLINE float row_bias(const Moments& moments, float n, float mean, float variance) {
    const double growth = moments.growth == 0 ? 0.0 : moments.growth * std::log(static_cast<double>(n));
    const float deviation = std::sqrt(variance + static_cast<float>(moments.floor));
    return -(static_cast<float>(moments.threshold + growth) + mean + deviations(moments, n) * deviation);
}

// The gradients of mean and variance of a row, given or by way of its bias.
INLINE float mean_gradient(const Moments& moments, int64_t row) {
    return moments.d_bias == nullptr ? moments.d_mean[row] : -moments.d_bias[row];
}

INLINE float variance_gradient(const Moments& moments, int64_t row, float n) {
    if (moments.d_bias == nullptr) return moments.d_variance[row];
    const float deviation = std::sqrt(moments.variance[row] + static_cast<float>(moments.floor));
    return -moments.d_bias[row] * deviations(moments, n) / (2 * deviation);
}

inline void moments_forward(const Moments& moments, float* memory, int64_t b, int64_t h) {
    Scratch scratch(memory);
    const MomentBuffers buffers(scratch, moments);
    const int64_t at = (b * moments.heads + h) * moments.queries, wide = buffers.stride - WIDTH;
    const float scale = static_cast<float>(moments.scale);
    for_rows<true>(moments, buffers, b, h, [&](int64_t begin, int64_t count, int64_t seen, int64_t, int64_t slots) {
        times_form<true>(buffers, buffers.rows, count);
        if (slots > 0) own_products(buffers, count, seen, slots);
        for (int64_t i = 0; i < count; ++i) {
            const RowSums sums(buffers, i, slots);
            const float away = sums.sum / buffers.n[i], variance = sums.square / buffers.n[i] - away * away;
            const float origin = dot(buffers.rows + i * buffers.stride, buffers.origin, wide);
            const float mean = scale * (away + origin), scaled = variance < 0 ? 0.0f : scale * scale * variance;
            const int64_t row = at + begin + i;
            moments.variance[row] = scaled;
            if (moments.bias == nullptr)
                moments.mean[row] = mean;
            else
                moments.bias[row] = row_bias(moments, buffers.n[i], mean, scaled);
        }
    });
}

// From the gradients of mean and variance to those of S1 and S2, of the rows of a chunk.
INLINE void sum_gradients(const Moments& moments, const MomentBuffers& buffers, int64_t b, int64_t h, int64_t begin,
                          int64_t count, int64_t slots) {
    const int64_t at = (b * moments.heads + h) * moments.queries + begin;
    const float scale = static_cast<float>(moments.scale);
    for (int64_t i = 0; i < count; ++i) {
        const float n = buffers.n[i], away = RowSums(buffers, i, slots).sum / n;
        const bool spread = moments.variance[at + i] != 0;
        const float d_variance = spread ? scale * scale * variance_gradient(moments, at + i, n) / n : 0.0f;
        buffers.d_squares[begin + i] = d_variance;
        buffers.d_sums[begin + i] = scale * mean_gradient(moments, at + i) / n - 2 * d_variance * away;
    }
}

INLINE void add_row(float* to, const float* from, int64_t width) {
    int64_t c = 0;
    for (; c + LANES <= width; c += LANES) store(to + c, load(to + c) + load(from + c));
    for (; c < width; ++c) to[c] += from[c];
}

// d_y_i = sum_j (d1_i + 2 d2_i y_i . x_j) x_j + scale d_mean_i origin, and of the own chunk also
// d_x_j = sum_i (the same factor) y_i.
INLINE void query_gradients(const Moments& moments, const MomentBuffers& buffers, int64_t b, int64_t h) {
    const int64_t at = (b * moments.heads + h) * moments.queries, stride = buffers.stride;
    const float scale = static_cast<float>(moments.scale);
    for_rows<false>(moments, buffers, b, h, [&](int64_t begin, int64_t count, int64_t seen, int64_t first, int64_t slots) {
        const float *d1 = buffers.d_sums + begin, *d2 = buffers.d_squares + begin;
        times_form<false>(buffers, buffers.rows, count);
        if (slots > 0) own_products(buffers, count, seen, slots);
        sum_gradients(moments, buffers, b, h, begin, count, slots);
        for (int64_t i = 0; i < count; ++i) {
            float* row = buffers.result + i * stride;
            const float d_origin = scale * mean_gradient(moments, at + begin + i);
            for (int64_t c = 0; c < stride - WIDTH; c += LANES)
                store(row + c, load(row + c) * (2 * d2[i]) + load(buffers.line + c) * d1[i] +
                                   load(buffers.origin + c) * d_origin);
        }
        if (slots > 0) {
            for (int64_t i = 0; i < round_up(count, ROWS); ++i) {
                float* row = buffers.products + i * CHUNK;
                for (int64_t j = 0; j < panels(slots) * WIDTH; ++j)
                    row[j] = i < count && j < seen + i ? d1[i] + 2 * d2[i] * row[j] : 0.0f;
            }
            for (int64_t column = 0; column < moments.width; column += WIDTH) {
                for (int64_t r = 0; r < count; r += ROWS) {
                    Block block = load_block(buffers.result + r * stride + column, stride);
                    multiply(block, buffers.products + r * CHUNK, CHUNK, 1, buffers.slots + column, stride, slots);
                    store_block(buffers.result + r * stride + column, stride, block);
                }
            }
        }
        for (int64_t i = 0; i < count; ++i)
            add_row(moments.d_y.at(b, h, begin + i), buffers.result + i * stride, moments.width);
        if (slots == 0) return;
        for (int64_t column = 0; column < moments.width; column += WIDTH)
            for (int64_t j = 0; j < slots; j += ROWS) {
                Block block = zero_block();
                multiply(block, buffers.products + j, 1, CHUNK, buffers.rows + column, stride, count);
                store_block(buffers.result + j * stride + column, stride, block);
            }
        for (int64_t j = 0; j < slots; ++j)
            if (moments.visible(b, first + j))
                add_row(moments.d_x.at(b, h, first + j), buffers.result + j * stride, moments.width);
    });
}

// d_x_j += sum over the rows after its chunk of (d1_i + 2 d2_i y_i . x_j) y_i, by way of sum d2_i y_i y_i^T and sum d1_i y_i.
INLINE void slot_gradients(const Moments& moments, const MomentBuffers& buffers, int64_t b, int64_t h) {
    const int64_t stride = buffers.stride;
    const auto add_rows = [&](int64_t begin, int64_t count) {
        load_rows(moments, buffers, b, h, begin, count);
        std::memcpy(buffers.slots, buffers.rows, sizeof(float) * CHUNK * stride);
        for (int64_t i = 0; i < count; ++i)
            for (int64_t c = 0; c < stride; c += LANES) {
                float* weighed = buffers.slots + i * stride + c;
                store(weighed, load(weighed) * (2 * buffers.d_squares[begin + i]));
            }
        add_products<false>(buffers, buffers.rows, buffers.slots, count);
        add_line(buffers, buffers.rows, count, buffers.d_sums + begin);
    };
    buffers.clear();
    if (!moments.causal)
        for (int64_t begin = 0; begin < moments.queries; begin += CHUNK) add_rows(begin, up_to(begin, moments.queries));
    for (int64_t first = (moments.slots - 1) / CHUNK * CHUNK; first >= 0; first -= CHUNK) {
        const int64_t count = up_to(first, moments.slots);
        const OwnRows own(moments, first);
        load_slots(moments, buffers, b, h, first, count);
        times_form<false>(buffers, buffers.slots, count);
        for (int64_t j = 0; j < count; ++j) {
            if (!moments.visible(b, first + j)) continue;
            add_row(moments.d_x.at(b, h, first + j), buffers.result + j * stride, moments.width);
            add_row(moments.d_x.at(b, h, first + j), buffers.line, moments.width);
        }
        if (moments.causal && own.count > 0) add_rows(own.begin, own.count);
    }
}

inline void moments_backward(const Moments& moments, float* memory, int64_t b, int64_t h) {
    Scratch scratch(memory);
    const MomentBuffers buffers(scratch, moments);
    query_gradients(moments, buffers, b, h);
    slot_gradients(moments, buffers, b, h);
}
