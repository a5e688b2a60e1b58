// Tiles of queries against tiles of keys: packing, scores, and the products with what they weigh.
//
// Scores of a tile live in a buffer of QUERIES x STRIDE. `live` has a bit for every block of it
// (ROWS queries x WIDTH keys) with an activation that is not zero; all others are skipped.
#pragma once

constexpr int QUERIES = 96;                 // of a tile; a multiple of ROWS
constexpr int GROUPS = QUERIES / ROWS;      // groups of rows of a tile, at most 32
constexpr int KEYS = 192;                   // of a tile; a multiple of ROWS and of WIDTH
constexpr int STRIDE = KEYS + 16;           // of a row of scores; not a power of two, which would crowd the cache
constexpr int PANELS = KEYS / WIDTH;
static_assert(KEYS % 32 == 0 && KEYS % ROWS == 0 && QUERIES % ROWS == 0 && GROUPS <= 32, "tiles are made of blocks");

INLINE int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

// The slots of one tile: `count` visible ones.
struct KeyTile {
    int32_t first, count;

    int32_t panels() const { return (count + WIDTH - 1) / WIDTH; }
};

// The rows of one tile, and what each of them sees.
struct QueryTile {
    int32_t first, count;        // rows first .. first + count of the sequence
    int32_t seen[QUERIES];       // how many slots of the key tile each row sees; 0 past the last row
    float bias[QUERIES];
    int32_t most[GROUPS], least[GROUPS];  // of `seen` in each group of rows

    int32_t groups() const { return (count + ROWS - 1) / ROWS; }
};

// Panels of columns: [panel][row][WIDTH], zeros where the panel sticks out.
inline void pack_panels(float* to, const Tensor4& from, int64_t b, int64_t h, const int32_t* slots, int32_t count,
                        int64_t width) {
    for (int64_t column = 0; column < width; column += WIDTH) {
        const int64_t here = width - column < WIDTH ? width - column : WIDTH;
        for (int32_t j = 0; j < count; ++j, to += WIDTH) {
            const float* row = from.at(b, h, slots[j]) + column;
            if (here == WIDTH) {
                store(to, load(row));
                store(to + LANES, load(row + LANES));
            } else {
                for (int64_t c = 0; c < WIDTH; ++c) to[c] = c < here ? row[c] : 0.0f;
            }
        }
    }
}

// Panels of rows, transposed: [panel of WIDTH rows][column][WIDTH], zeros past the last row.
inline void pack_transposed(float* to, const Tensor4& from, int64_t b, int64_t h, const int32_t* slots, int32_t count,
                            int64_t width) {
    for (int32_t j = 0; j < count; j += WIDTH, to += WIDTH * width) {
        const float* rows[WIDTH];
        const int32_t here = count - j < WIDTH ? count - j : WIDTH;
        for (int32_t r = 0; r < WIDTH; ++r) rows[r] = from.at(b, h, slots[j + (r < here ? r : here - 1)]);
        for (int64_t p = 0; p < width; ++p)
            for (int32_t r = 0; r < WIDTH; ++r) to[p * WIDTH + r] = rows[r][p];
        if (here < WIDTH)
            for (int64_t p = 0; p < width; ++p)
                for (int32_t r = here; r < WIDTH; ++r) to[p * WIDTH + r] = 0.0f;
    }
}

// Rows begin .. end next to each other, times a factor each, zeros up to `stride` and up to a whole group of rows.
template <class Factor>
inline void copy_rows(float* to, int64_t stride, const Tensor4& from, int64_t b, int64_t h, int64_t begin, int64_t end,
                      int64_t width, const Factor& factor) {
    const int64_t padded = begin + round_up(end - begin, ROWS);
    for (int64_t i = begin; i < padded; ++i, to += stride) {
        int64_t c = 0;
        if (i < end) {
            const float* row = from.at(b, h, i);
            const float times = factor(i);
            for (; c + LANES <= width; c += LANES) store(to + c, load(row + c) * times);
            for (; c < width; ++c) to[c] = row[c] * times;
        }
        for (; c < stride; ++c) to[c] = 0.0f;
    }
}

// Whether `count` rows are all read sparsely; sparse: a flag a row, or null where none is.
INLINE bool all_sparse(const uint8_t* sparse, int64_t count) {
    return sparse != nullptr && std::memchr(sparse, 0, static_cast<size_t>(count)) == nullptr;
}

// Rows first .. end; sparse: a flag for each of them that sees nothing here as it is read sparsely, or null.
inline QueryTile query_tile(const Rows& rows, int64_t b, int64_t h, int64_t first, int64_t end, const KeyTile& keys,
                            const uint8_t* sparse) {
    QueryTile tile;
    tile.first = static_cast<int32_t>(first);
    tile.count = static_cast<int32_t>(end - first < QUERIES ? end - first : QUERIES);
    for (int32_t i = 0; i < QUERIES; ++i) {
        const bool reads = i < tile.count && (sparse == nullptr || !sparse[i]);
        const int32_t seen = reads ? rows.visible(b, first + i) - keys.first : 0;
        tile.seen[i] = seen < 0 ? 0 : (seen > keys.count ? keys.count : seen);
        tile.bias[i] = i < tile.count ? rows.bias(b, h, first + i) : 0.0f;
    }
    for (int32_t group = 0; group < GROUPS; ++group) {
        const int32_t* seen = tile.seen + group * ROWS;
        tile.most[group] = tile.least[group] = seen[0];
        for (int r = 1; r < ROWS; ++r) {
            tile.most[group] = seen[r] > tile.most[group] ? seen[r] : tile.most[group];
            tile.least[group] = seen[r] < tile.least[group] ? seen[r] : tile.least[group];
        }
    }
    return tile;
}

INLINE void hide(Block& block, const int32_t* seen, int32_t first_column) {
    const Integers lanes = lane_numbers() + first_column;
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
        block.at[r][0] = (lanes < seen[r]) ? block.at[r][0] : Vector{};
        block.at[r][1] = (lanes + LANES < seen[r]) ? block.at[r][1] : Vector{};
    }
}

INLINE bool any_nonzero(const Block& block) {
    Integers bits{};
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
        bits |= reinterpret_cast<Integers>(block.at[r][0]) | reinterpret_cast<Integers>(block.at[r][1]);
    return any(bits);
}

// Activations of a block of scores, and their slopes where they are kept.
template <class Act, bool Backward>
INLINE void activate(Block& block, Block& slope) {
    const auto row = [&](int r) {
#pragma GCC unroll 2
        for (int side = 0; side < 2; ++side) {
            const Vector score = block.at[r][side];
            block.at[r][side] = Act::activate(score);
            if (Backward && Act::slope_kept) slope.at[r][side] = Act::slope(score, block.at[r][side]);
        }
    };
    if (Act::template by_row<Backward>) {
#pragma GCC unroll 1
        for (int r = 0; r < ROWS; ++r) row(r);
    } else {
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) row(r);
    }
}

// Activations of a tile, and for the backward pass their slopes. True where any is not zero.
// q: rows of `q_stride`; keys: transposed panels of `width`; key_bias: one a slot or null.
template <class Act, bool Backward>
inline bool activations(const float* q, int64_t q_stride, const float* keys, int64_t width, const float* key_bias,
                        const QueryTile& rows, const KeyTile& tile, bool biased, float* weights, float* slopes,
                        uint32_t* live) {
    bool found = false;
    for (int32_t panel = 0; panel < tile.panels(); ++panel) {
        live[panel] = 0;
        const float* panel_keys = keys + panel * WIDTH * width;
        for (int32_t group = 0; group < rows.groups(); ++group) {
            float* to = weights + group * ROWS * STRIDE + panel * WIDTH;
            if (rows.most[group] <= panel * WIDTH) {
                if (Backward) store_block(to, STRIDE, zero_block());
                continue;
            }
            Block block = zero_block();
            multiply(block, q + group * ROWS * q_stride, q_stride, 1, panel_keys, WIDTH, width);
            if (biased) {
                const Vector left = key_bias == nullptr ? Vector{} : load(key_bias + panel * WIDTH);
                const Vector right = key_bias == nullptr ? Vector{} : load(key_bias + panel * WIDTH + LANES);
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; ++r) {
                    block.at[r][0] += left + rows.bias[group * ROWS + r];
                    block.at[r][1] += right + rows.bias[group * ROWS + r];
                }
            }
            Block slope;
            activate<Act, Backward>(block, slope);
            if (rows.least[group] < (panel + 1) * WIDTH) {
                const int32_t* seen = rows.seen + group * ROWS;
                hide(block, seen, panel * WIDTH);
                if (Backward && Act::slope_kept) hide(slope, seen, panel * WIDTH);
            }
            store_block(to, STRIDE, block);
            if (!any_nonzero(block)) continue;
            live[panel] |= 1u << group;
            found = true;
            if (Backward && Act::slope_kept)
                store_block(slopes + group * ROWS * STRIDE + panel * WIDTH, STRIDE, slope);
        }
    }
    return found;
}

// Whether `count` rows of a matrix hold only finite numbers; stride: from one row to the next.
INLINE bool all_finite(const float* from, int64_t stride, int64_t count, int64_t width) {
    Vector zeros{};
    float zero = 0.0f;
    for (int64_t i = 0; i < count; ++i, from += stride) {
        int64_t c = 0;
        for (; c + LANES <= width; c += LANES) zeros += load(from + c) * 0.0f;
        for (; c < width; ++c) zero += from[c] * 0.0f;
    }
    return total(zeros) + zero == 0.0f;
}

// The same for the slots of a tile.
inline bool all_finite(const Tensor4& tensor, int64_t b, int64_t h, const int32_t* slots, int32_t count, int64_t width) {
    for (int32_t j = 0; j < count; ++j)
        if (!all_finite(tensor.at(b, h, slots[j]), 0, 1, width)) return false;
    return true;
}

// Runs of keys that a group of rows weighs.
INLINE int32_t runs_of_group(const uint32_t* live, int32_t panels, int32_t count, int32_t group, Run* runs) {
    int32_t found = 0;
    for (int32_t panel = 0; panel < panels; ++panel) {
        if (!(live[panel] >> group & 1)) continue;
        const int32_t start = panel * WIDTH, width = count - start < WIDTH ? count - start : WIDTH;
        if (found > 0 && runs[found - 1].start + runs[found - 1].count == start) {
            runs[found - 1].count += width;
        } else {
            runs[found++] = {start, width};
        }
    }
    return found;
}

// Runs of rows that weigh any of the keys first .. first + ROWS.
INLINE int32_t runs_of_keys(const uint32_t* live, int32_t panels, int32_t groups, int32_t first, Run* runs) {
    const int32_t last = (first + ROWS - 1) / WIDTH;
    const uint32_t bits = live[first / WIDTH] | live[last < panels ? last : panels - 1];
    int32_t found = 0;
    for (int32_t group = 0; group < groups; ++group) {
        if (!(bits >> group & 1)) continue;
        if (found > 0 && runs[found - 1].start + runs[found - 1].count == group * ROWS) {
            runs[found - 1].count += ROWS;
        } else {
            runs[found++] = {group * ROWS, ROWS};
        }
    }
    return found;
}

// to[i][c] += sum over keys of scores[i][j] * panels[j][c], for all rows of the tile.
inline void add_rows_times_panels(float* to, int64_t to_stride, const float* scores, const float* panels,
                                  int64_t width, const QueryTile& rows, const KeyTile& tile, const uint32_t* live) {
    Run runs[GROUPS][PANELS];
    int32_t counts[GROUPS];
    for (int32_t group = 0; group < rows.groups(); ++group)
        counts[group] = runs_of_group(live, tile.panels(), tile.count, group, runs[group]);
    for (int64_t column = 0; column < width; column += WIDTH, panels += tile.count * WIDTH)
        for (int32_t group = 0; group < rows.groups(); ++group) {
            if (counts[group] == 0) continue;
            float* target = to + group * ROWS * to_stride + column;
            Block block = load_block(target, to_stride);
            for (int32_t i = 0; i < counts[group]; ++i) {
                const Run run = runs[group][i];
                multiply(block, scores + group * ROWS * STRIDE + run.start, STRIDE, 1, panels + run.start * WIDTH,
                         WIDTH, run.count);
            }
            store_block(target, to_stride, block);
        }
}

// to[j][c] += sum over rows of scores[i][j] * rows[i][c], for all keys of the tile.
inline void add_keys_times_rows(float* to, int64_t to_stride, const float* scores, const float* source,
                                int64_t source_stride, int64_t width, const QueryTile& rows, const KeyTile& tile,
                                const uint32_t* live) {
    Run runs[GROUPS];
    for (int32_t key = 0; key < tile.count; key += ROWS) {
        const int32_t count = runs_of_keys(live, tile.panels(), rows.groups(), key, runs);
        if (count == 0) continue;
        for (int64_t column = 0; column < width; column += WIDTH) {
            float* target = to + key * to_stride + column;
            Block block = load_block(target, to_stride);
            for (int32_t i = 0; i < count; ++i)
                multiply(block, scores + runs[i].start * STRIDE + key, 1, STRIDE,
                         source + runs[i].start * source_stride + column, source_stride, runs[i].count);
            store_block(target, to_stride, block);
        }
    }
}
