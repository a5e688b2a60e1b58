// Passes of rows through the encoder and the decoder: those of some sentences together. Products take all rows at
// once; reads take the rows of one sentence after the other. A row has the same bits whatever stands beside it.
#pragma once

constexpr int64_t CHOICES = 512;  // outputs whose logits are looked at while they are near

INLINE int64_t whole_vectors(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

// Floats of scratch memory for a pass of so many rows, which read at most so many slots.
inline int64_t pass_floats(const Model& model, int64_t rows, int64_t most_slots, int64_t spans) {
    const int64_t wide = 3 * model.width > model.slots ? 3 * model.width : model.slots;
    const int64_t after = wide > CHOICES ? wide : CHOICES;
    return rows * (3 * model.width + after) + 2 * (TOGETHER * whole_vectors(most_slots) + 4 * LANES) + spans +
           2 * operand_floats(rows, wide) + model.slots + GROUP_INPUTS;
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

// Writes keys and values of a row into the slots of a layer.
INLINE void write_slot(float* slots, int64_t capacity, const float* keys, const float* values, int64_t slot,
                       int64_t heads, int64_t width) {
    for (int64_t head = 0; head < heads; ++head) {
        float* block = slots + (head * capacity + slot / LANES * LANES) * width + slot % LANES;
        for (int64_t c = 0; c < width; ++c) block[c * LANES] = keys[head * width + c];
        std::memcpy(slots + ((heads + head) * capacity + slot) * width, values + head * width, sizeof(float) * width);
    }
}

// The k greatest of a row, in falling order, and their tokens: what is in the list may be pushed out.
INLINE void keep_best(const float* row, int64_t size, int64_t first_token, int64_t k, float* values, int32_t* tokens) {
    const auto insert = [&](int64_t place) {
        int64_t at = k - 1;
        const float value = row[place];
        for (; at > 0 && value > values[at - 1]; --at) {
            values[at] = values[at - 1];
            tokens[at] = tokens[at - 1];
        }
        values[at] = value;
        tokens[at] = static_cast<int32_t>(first_token + place);
    };
    int64_t place = 0;
    for (; place + 2 * LANES <= size; place += 2 * LANES) {
        const Integers above = (load(row + place) > values[k - 1]) | (load(row + place + LANES) > values[k - 1]);
        if (!any(above)) continue;
        for (int64_t each = place; each < place + 2 * LANES; ++each)
            if (row[each] > values[k - 1]) insert(each);
    }
    for (; place < size; ++place)
        if (row[place] > values[k - 1]) insert(place);
}

class Pass {
  public:
    Pass(const Model& model, const Part* parts, int64_t count, int64_t most_slots, int64_t spans, float* scratch)
        : model_(model), parts_(parts), count_(count), width_(model.width), head_(model.width / model.heads),
          code_(byte_code(model.path)), score_stride_(whole_vectors(most_slots)) {
        for (int64_t p = 0; p < count; ++p) rows_ += parts[p].rows;
        const int64_t wide = 3 * width_ > model.slots ? 3 * width_ : model.slots;
        x_ = scratch;
        normed_ = x_ + rows_ * width_;
        read_ = normed_ + rows_ * width_;
        wide_ = read_ + rows_ * width_;
        scores_ = wide_ + rows_ * (wide > CHOICES ? wide : CHOICES);
        chosen_ = reinterpret_cast<int32_t*>(scores_ + TOGETHER * score_stride_ + 4 * LANES);
        sums_ = scores_ + 2 * (TOGETHER * score_stride_ + 4 * LANES);
        bytes_ = sums_ + spans;
        inputs_ = reinterpret_cast<int32_t*>(bytes_ + 2 * operand_floats(rows_, wide));
    }

    // The states of all rows behind the encoder.
    const float* encode() {
        embed(model_.source_embedding);
        for (int64_t layer = 0; layer < model_.encoder_layers; ++layer) {
            const Layer& maps = model_.encoder[layer];
            sublayer(maps.own_norm, [&](const float* in) { own_read(maps, 0, in, model_.encoder_rule, true); });
            sublayer(maps.ffn_norm, [&](const float* in) { fire(maps, in); });
        }
        finish(model_.encoder_norm);
        return x_;
    }

    // Makes the slots that the decoder reads of the source from states (rows, width): those of a single part.
    void make_source_slots(const float* states, float* source, int64_t step, int64_t capacity) {
        for (int64_t layer = 0; layer < model_.decoder_layers; ++layer, source += step) {
            linear(wide_, 2 * width_, states, model_.decoder[layer].cross_key_value, rows_, code_, bytes_);
            for (int64_t r = 0; r < rows_; ++r)
                write_slot(source, capacity, wide_ + 2 * r * width_, wide_ + (2 * r + 1) * width_, r, model_.heads, head_);
        }
    }

    // What may follow the wanted rows.
    void decode(Following* following, int64_t k) {
        embed(model_.target_embedding);
        for (int64_t layer = 0; layer < model_.decoder_layers; ++layer) {
            const Layer& maps = model_.decoder[layer];
            sublayer(maps.own_norm, [&](const float* in) { own_read(maps, layer, in, model_.own_rule, false); });
            sublayer(maps.cross_norm, [&](const float* in) { source_read(maps, layer, in); });
            sublayer(maps.ffn_norm, [&](const float* in) { fire(maps, in); });
        }
        int64_t wanted = 0, row = 0;
        for (int64_t p = 0; p < count_; row += parts_[p++].rows)
            for (int64_t r = parts_[p].first_wanted; r < parts_[p].rows; ++r, ++wanted)
                if (row + r != wanted) std::memcpy(x_ + wanted * width_, x_ + (row + r) * width_, sizeof(float) * width_);
        rows_ = wanted;
        finish(model_.decoder_norm);
        choose(following, k);
    }

  private:
    void embed(const Embedding& table) {
        const float scale = static_cast<float>(model_.embedding_scale);
        float* x = x_;
        for (int64_t p = 0; p < count_; ++p)
            for (int64_t r = 0; r < parts_[p].rows; ++r, x += width_) {
                const Part& part = parts_[p];
                const int64_t token = part.tokens[r], position = part.position + (part.consecutive ? r : 0);
                if (table.bytes == nullptr) {
                    for (int64_t c = 0; c < width_; ++c) x[c] = table.floats[token * width_ + c] * scale;
                } else {
                    const float step = table.scales[token] * scale;
                    for (int64_t c = 0; c < width_; ++c) x[c] = table.bytes[token * width_ + c] * step;
                }
                if (model_.adds_positions) add(x, model_.sinusoids + position * width_);
                if (part.numbers != nullptr) add(x, model_.sinusoids + part.numbers[r] * width_);
            }
    }

    INLINE void add(float* x, const float* y) const {
        for (int64_t c = 0; c < width_; ++c) x[c] += y[c];
    }

    // x + f(norm(x)), or norm(x + f(x)); f adds to x.
    template <class Add>
    INLINE void sublayer(const Norm& norm, const Add& add_to) {
        if (model_.pre_norm) {
            normalise(normed_, x_, norm, rows_, width_);
            add_to(normed_);
        } else {
            std::memcpy(normed_, x_, sizeof(float) * rows_ * width_);
            add_to(normed_);
            normalise(x_, x_, norm, rows_, width_);
        }
    }

    void finish(const Norm& norm) {
        if (norm.weight != nullptr) normalise(x_, x_, norm, rows_, width_);
    }

    void fire(const Layer& maps, const float* in) {
        linear(wide_, model_.slots, in, maps.ffn_keys, rows_, code_, bytes_, SET_POSITIVE);
        add_fired(x_, width_, wide_, maps.ffn_values, rows_, code_, bytes_, inputs_);
    }

    void own_read(const Layer& maps, int64_t layer, const float* in, const ReadRule& rule, bool all_visible) {
        linear(wide_, 3 * width_, in, maps.query_key_value, rows_, code_, bytes_);
        int64_t row = 0;
        for (int64_t p = 0; p < count_; row += parts_[p++].rows) {
            const Part& part = parts_[p];
            float* slots = part.own + layer * part.own_step;
            for (int64_t r = 0; r < part.rows; ++r) {
                float* query = wide_ + (row + r) * 3 * width_;
                if (model_.cosines != nullptr) {
                    const int64_t turn = (part.position + (part.consecutive ? r : 0)) * (head_ / 2);
                    rotate(query, 2 * model_.heads, head_, model_.cosines + turn, model_.sines + turn);
                }
                write_slot(slots, part.own_capacity, query + width_, query + 2 * width_, part.used + r, model_.heads, head_);
            }
            read(row, part, 3 * width_, slots, part.own_capacity, rule, maps.own_offset, part.ancestors,
                 part.used + part.rows, nullptr, [&](int64_t r) {
                     if (all_visible) return part.rows;
                     return part.position + 1 + (part.consecutive ? r : 0);
                 });
        }
        linear(x_, width_, read_, maps.own_output, rows_, code_, bytes_, ADD);
    }

    void source_read(const Layer& maps, int64_t layer, const float* in) {
        linear(wide_, width_, in, maps.cross_query, rows_, code_, bytes_);
        int64_t row = 0;
        for (int64_t p = 0; p < count_; row += parts_[p++].rows) {
            const Part& part = parts_[p];
            float* reads = layer + 1 == model_.decoder_layers ? part.reads : nullptr;
            if (reads != nullptr) std::memset(reads, 0, sizeof(float) * part.rows * part.span_count);
            read(row, part, width_, part.source + layer * part.source_step, part.source_capacity, model_.cross_rule,
                 maps.cross_offset, nullptr, part.source_count, reads, [&](int64_t) { return part.source_count; });
        }
        linear(x_, width_, read_, maps.cross_output, rows_, code_, bytes_, ADD);
    }

    // The reads of a part, whose first row is `row`, by all heads. counts(r): what row r sees.
    template <class Counts>
    INLINE void read(int64_t row, const Part& part, int64_t q_stride, const float* slots, int64_t capacity,
                     const ReadRule& rule, const float* offsets, const int32_t* ancestors, int64_t used, float* reads,
                     const Counts& counts) {
        for (int64_t first = 0; first < part.rows; first += TOGETHER) {
            const int64_t rows = part.rows - first < TOGETHER ? part.rows - first : TOGETHER;
            int64_t seen[TOGETHER], found[TOGETHER];
            const bool sparse = rule.kind != READ_SOFTMAX;
            for (int64_t r = 0; r < rows; ++r) seen[r] = counts(first + r);
            for (int64_t head = 0; head < model_.heads; ++head) {
                float* out = read_ + (row + first) * width_ + head * head_;
                const float* q = wide_ + (row + first) * q_stride + head * head_;
                if (used == 0) {
                    for (int64_t r = 0; r < rows; ++r) std::memset(out + r * width_, 0, sizeof(float) * head_);
                    continue;
                }
                const HeadSlots from = {slots + head * capacity * head_, slots + (model_.heads + head) * capacity * head_,
                                        used, ancestors == nullptr ? nullptr : ancestors + first * part.ancestor_stride,
                                        part.ancestor_stride, part.straight};
                const float offset = offsets == nullptr ? 0.0f : offsets[head];
                const auto together = [&](auto size) {
                    read_rows<decltype(size)::value>(out, width_, q, q_stride, head_, from, seen, rule, offset, scores_,
                                                     score_stride_, chosen_, found);
                };
                switch (rows) {
                    case 1: together(std::integral_constant<int, 1>{}); break;
                    case 2: together(std::integral_constant<int, 2>{}); break;
                    case 3: together(std::integral_constant<int, 3>{}); break;
#if LANES == 16
                    case 4: together(std::integral_constant<int, 4>{}); break;
                    case 5: together(std::integral_constant<int, 5>{}); break;
#endif
                    default: together(std::integral_constant<int, TOGETHER>{});
                }
                for (int64_t r = 0; reads != nullptr && r < rows; ++r)
                    add_shares(reads + (first + r) * part.span_count, part.span_count, scores_ + r * score_stride_,
                               sparse ? found[r] : seen[r], sparse ? chosen_ + r * score_stride_ : nullptr, part.spans,
                               sums_);
            }
        }
    }

    // Logits, a few outputs at a time: the sum of their exponentials and the best of them are kept.
    void choose(Following* following, int64_t k) {
        const Operand x = operand_of(x_, rows_, model_.output, bytes_);
        float *most = normed_, *sums = read_;  // of each row so far
        for (int64_t r = 0; r < rows_; ++r) {
            Following& own = following[r];
            most[r] = -INFINITY, sums[r] = 0, own.end = own.separator = -INFINITY;
            for (int64_t i = 0; i < k; ++i) own.values[i] = -INFINITY, own.tokens[i] = -1;
        }
        for (int64_t first = 0; first < model_.vocabulary; first += CHOICES) {
            const int64_t last = first + CHOICES < model_.vocabulary ? first + CHOICES : model_.vocabulary;
            product_of(wide_, CHOICES, x, model_.output, code_, first, last);
            for (int64_t r = 0; r < rows_; ++r) {
                float* logits = wide_ + r * CHOICES;
                const int64_t size = last - first;
                fill_up(logits, size, -INFINITY);
                const float here = greatest(logits, size);
                if (here > most[r] || here != here) {
                    sums[r] *= exponential(filled(most[r] - here))[0];
                    most[r] = here;
                }
                Vector parts[4] = {};
                in_four_chains(logits, size, [&](int chain, Vector x) { parts[chain] += exponential_of_negative(x - most[r]); });
                sums[r] += total((parts[0] + parts[1]) + (parts[2] + parts[3]));
                if (first == 0) {
                    if (TOKEN_END < size) following[r].end = logits[TOKEN_END];
                    if (TOKEN_SEPARATOR < size) following[r].separator = logits[TOKEN_SEPARATOR];
                    for (int64_t token : {TOKEN_PAD, TOKEN_BEGIN, TOKEN_END})
                        if (token < size) logits[token] = -INFINITY;
                    if (!following[r].separates && TOKEN_SEPARATOR < size) logits[TOKEN_SEPARATOR] = -INFINITY;
                }
                if (!(here <= following[r].values[k - 1]))
                    keep_best(logits, size, first, k, following[r].values, following[r].tokens);
            }
        }
        for (int64_t r = 0; r < rows_; ++r) {
            const float shift = most[r] + std::log(sums[r]);
            following[r].end -= shift, following[r].separator -= shift;
            for (int64_t i = 0; i < k; ++i) following[r].values[i] -= shift;
        }
    }

    const Model& model_;
    const Part* parts_;
    const int64_t count_, width_, head_;
    const ByteCode& code_;
    const int64_t score_stride_;
    int64_t rows_ = 0;
    float *x_, *normed_, *read_, *wide_, *scores_, *sums_, *bytes_;
    int32_t *inputs_, *chosen_;
};

inline const float* encode(const Model& model, const Part* parts, int64_t count, int64_t most_slots, float* scratch) {
    return Pass(model, parts, count, most_slots, 0, scratch).encode();
}

inline void source_slots(const Model& model, const Part& part, const float* states, float* scratch) {
    Pass(model, &part, 1, part.rows, 0, scratch)
        .make_source_slots(states, const_cast<float*>(part.source), part.source_step, part.source_capacity);
}

inline void decode(const Model& model, const Part* parts, int64_t count, int64_t most_slots, int64_t spans,
                   Following* following, int64_t k, float* scratch) {
    Pass(model, parts, count, most_slots, spans, scratch).decode(following, k);
}
