// One position through the whole decoder, for the beams of some sources; nobody else touches their rows.
#pragma once

inline int64_t decode_floats(const Decoder& decoder, const Position& position, int64_t sources) {
    const int64_t rows = sources * position.beams;
    const int64_t most = position.length + 1 > position.source_capacity ? position.length + 1 : position.source_capacity;
    return rows * (6 * decoder.width + decoder.slots) + TOGETHER * most + 128;
}

INLINE void normalise(float* to, const float* x, const Norm& norm, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; ++r, x += width, to += width) {
        const float mean = mean_of(x, width);
        const float factor = 1.0f / std::sqrt(variance_of(x, width, mean) + static_cast<float>(norm.epsilon));
        int64_t c = 0;
        for (; c + LANES <= width; c += LANES)
            store(to + c, (load(x + c) - mean) * factor * load(norm.weight + c) + load(norm.bias + c));
        for (; c < width; ++c) to[c] = (x[c] - mean) * factor * norm.weight[c] + norm.bias[c];
    }
}

INLINE void rotate(float* x, int64_t heads, int64_t width, const float* cosine, const float* sine) {
    const int64_t half = width / 2;
    for (int64_t head = 0; head < heads; ++head, x += width)
        for (int64_t c = 0; c < half; ++c) {
            const float a = x[c], b = x[c + half];
            x[c] = a * cosine[c] - b * sine[c];
            x[c + half] = a * sine[c] + b * cosine[c];
        }
}

// The ancestors of every row, and how many of the first positions all beams of the source share.
inline int64_t follow(const Position& position, int64_t source) {
    const int64_t beams = position.beams, stride = position.ancestor_stride, length = position.length;
    int32_t* first = position.ancestors + source * beams * stride;
    for (int64_t beam = 0; beam < beams; ++beam) {
        int32_t* own = first + beam * stride;
        const int32_t* parent = position.old_ancestors + position.parents[source * beams + beam] * stride;
        std::memcpy(own, parent, sizeof(int32_t) * length);
        own[length] = static_cast<int32_t>(position.used + beam);
    }
    int64_t shared = 0;
    for (bool same = true; same && shared < length;) {
        for (int64_t beam = 1; beam < beams; ++beam) same &= first[beam * stride + shared] == first[shared];
        shared += same;
    }
    return beams == 1 ? length + 1 : shared;
}

// Logits to log-probabilities.
INLINE void log_softmax(float* logits, int64_t count) {
    const float most = greatest(logits, count);
    const float shift = most + std::log(exponentials(logits, count, most, false));
    int64_t t = 0;
    for (; t + LANES <= count; t += LANES) store(logits + t, load(logits + t) - shift);
    for (; t < count; ++t) logits[t] -= shift;
}

class Decoding {
  public:
    Decoding(const Decoder& decoder, const Position& position, float* scratch, int64_t begin, int64_t end)
        : decoder_(decoder), position_(position), begin_(begin), end_(end) {
        const int64_t numbers = rows() * decoder.width;
        x_ = scratch;
        normed_ = x_ + numbers;
        read_ = normed_ + numbers;
        wide_ = read_ + numbers;
        fired_ = wide_ + 3 * numbers;
        scores_ = fired_ + rows() * decoder.slots;
    }

    void run() {
        embed();
        shared_ = std::unique_ptr<int64_t[]>(new int64_t[end_ - begin_]);
        for (int64_t source = begin_; source < end_; ++source) shared_[source - begin_] = follow(position_, source);
        for (int64_t layer = 0; layer < decoder_.layers; ++layer) {
            const DecoderLayer& maps = decoder_.layer[layer];
            sublayer(maps.own_norm, [&](const float* in) { own_read(maps, position_.slots[layer], in); });
            sublayer(maps.cross_norm, [&](const float* in) { source_read(maps, position_.slots[layer], in); });
            sublayer(maps.ffn_norm, [&](const float* in) {
                linear(fired_, decoder_.slots, in, maps.ffn_keys, rows(), SET_POSITIVE);
                linear(x_, decoder_.width, fired_, maps.ffn_values, rows(), ADD);
            });
        }
        const bool normed = decoder_.norm.weight != nullptr;
        if (normed) normalise(normed_, x_, decoder_.norm, rows(), decoder_.width);
        float* out = position_.log_probabilities + begin_ * position_.beams * decoder_.vocabulary;
        linear(out, decoder_.vocabulary, normed ? normed_ : x_, decoder_.output, rows());
        for (int64_t r = 0; r < rows(); ++r) log_softmax(out + r * decoder_.vocabulary, decoder_.vocabulary);
    }

  private:
    int64_t rows() const { return (end_ - begin_) * position_.beams; }
    int64_t head_width() const { return decoder_.width / decoder_.heads; }

    void embed() {
        const int64_t width = decoder_.width, first = begin_ * position_.beams;
        const float scale = static_cast<float>(decoder_.embedding_scale);
        for (int64_t r = 0; r < rows(); ++r) {
            const float* from = decoder_.embedding + position_.tokens[first + r] * width;
            for (int64_t c = 0; c < width; ++c)
                x_[r * width + c] = from[c] * scale + (position_.sinusoid == nullptr ? 0.0f : position_.sinusoid[c]);
        }
    }

    // x + f(norm(x)), or norm(x + f(x)); f adds to x.
    template <class Add>
    INLINE void sublayer(const Norm& norm, const Add& add) {
        if (decoder_.pre_norm) {
            normalise(normed_, x_, norm, rows(), decoder_.width);
            add(normed_);
        } else {
            std::memcpy(normed_, x_, sizeof(float) * rows() * decoder_.width);
            add(normed_);
            normalise(x_, x_, norm, rows(), decoder_.width);
        }
    }

    void append(float* slots, const float* row, int64_t slot) const {
        for (int64_t head = 0; head < decoder_.heads; ++head)
            std::memcpy(slots + (head * position_.capacity + slot) * head_width(), row + head * head_width(),
                        sizeof(float) * head_width());
    }

    void own_read(const DecoderLayer& maps, const LayerSlots& slots, const float* in) {
        const int64_t width = decoder_.width, beams = position_.beams, heads = decoder_.heads;
        linear(wide_, 3 * width, in, maps.query_key_value, rows());
        for (int64_t source = begin_; source < end_; ++source) {
            float* keys = slots.own_keys + source * position_.capacity * width;
            float* values = slots.own_values + source * position_.capacity * width;
            float* queries = wide_ + (source - begin_) * beams * 3 * width;
            for (int64_t beam = 0; beam < beams; ++beam) {
                float* row = queries + beam * 3 * width;
                if (position_.cosine != nullptr) rotate(row, 2 * heads, head_width(), position_.cosine, position_.sine);
                append(keys, row + width, position_.used + beam);
                append(values, row + 2 * width, position_.used + beam);
            }
            const int32_t* ancestors = position_.ancestors + source * beams * position_.ancestor_stride;
            const BeamSlots from = {keys, values, position_.capacity, position_.length + 1, shared_[source - begin_],
                                    ancestors, position_.ancestor_stride};
            beam_read(read_ + (source - begin_) * beams * width, queries, 3 * width, heads, head_width(), beams, from,
                      decoder_.own_rule, maps.own_offset, static_cast<float>(position_.own_scale), scores_);
        }
        linear(x_, width, read_, maps.own_output, rows(), ADD);
    }

    void source_read(const DecoderLayer& maps, const LayerSlots& slots, const float* in) {
        const int64_t width = decoder_.width, beams = position_.beams;
        linear(wide_, width, in, maps.cross_query, rows());
        for (int64_t source = begin_; source < end_; ++source) {
            const int64_t count = position_.source_lengths[source], row = (source - begin_) * beams * width;
            const int64_t first = source * position_.source_capacity * width;
            const BeamSlots from = {slots.source_keys + first, slots.source_values + first, position_.source_capacity,
                                    count, count, nullptr, 0};
            beam_read(read_ + row, wide_ + row, width, decoder_.heads, head_width(), beams, from,
                      decoder_.cross_rule, maps.cross_offset, position_.source_scales[source], scores_);
        }
        linear(x_, width, read_, maps.cross_output, rows(), ADD);
    }

    const Decoder& decoder_;
    const Position& position_;
    const int64_t begin_, end_;
    std::unique_ptr<int64_t[]> shared_;
    float *x_, *normed_, *read_, *wide_, *fired_, *scores_;
};

inline void decode(const Decoder& decoder, const Position& position, float* scratch, int64_t begin, int64_t end) {
    Decoding(decoder, position, scratch, begin, end).run();
}

// The k greatest of a row in falling order, and their places; the first of equals comes first.
inline void best_of_row(const float* row, int64_t size, int64_t k, float* values, int64_t* places) {
    int64_t found = 0;
    const auto insert = [&](int64_t place) {
        const float value = row[place];
        int64_t at = found < k ? found++ : k - 1;
        for (; at > 0 && value > values[at - 1]; --at) {
            values[at] = values[at - 1];
            places[at] = places[at - 1];
        }
        values[at] = value;
        places[at] = place;
    };
    int64_t place = 0;
    for (; place < size && found < k; ++place) insert(place);
    for (; place + 2 * LANES <= size; place += 2 * LANES) {
        const Integers above = (load(row + place) > values[k - 1]) | (load(row + place + LANES) > values[k - 1]);
        if (!any(above)) continue;
        for (int64_t each = place; each < place + 2 * LANES; ++each)
            if (row[each] > values[k - 1]) insert(each);
    }
    for (; place < size; ++place)
        if (row[place] > values[k - 1]) insert(place);
}
