// Which slots a row sees, and the factor of its weights.
//
// Hidden slots are dropped when keys and values are packed, so a row sees a prefix of what is left:
// the first n_i visible slots, whether causality, padding or both hide the others.
#pragma once

#include <vector>

#include "problem.h"

// Plain pointers, so that code for any vector width may use them.
struct Rows {
    const Problem* problem;
    const int32_t* visible_slots;  // (B, Tk): the visible slots of each item, in order; (Tk) without a mask
    const int32_t* seen;           // (B, Tk + 1): how many of the first slots are visible; null without a mask
    const float *scales, *logs;    // factor * n^-exponent and log n, of each item and, where causal, each query
    int64_t per_item;              // entries of one item in `scales`; 0 where items share them

    // n_i, the number of slots that query i of item b sees.
    int32_t visible(int64_t b, int64_t i) const {
        const int64_t last = problem->causal ? problem->slots - problem->queries + i + 1 : problem->slots;
        return static_cast<int32_t>(seen == nullptr ? last : seen[b * (problem->slots + 1) + last]);
    }
    const int32_t* slots(int64_t b) const { return visible_slots + (seen == nullptr ? 0 : b * problem->slots); }
    float scale(int64_t b, int64_t i) const { return scales[entry(b, i)]; }

    // What is added to all scores of a row, unless its level is capped.
    float given_bias(int64_t b, int64_t h, int64_t i) const {
        const float* bias = problem->row_bias.at(b, h);
        return (bias == nullptr ? 0.0f : bias[i]) - (problem->log_n ? logs[entry(b, i)] : 0.0f);
    }
    bool capped(int64_t b, int64_t h, int64_t i) const {
        return problem->capped() && problem->best[problem->row(b, h, i)] > 0;
    }
    // What is added to all scores of a row; in a forward pass the cap is looked at last.
    float bias(int64_t b, int64_t h, int64_t i) const {
        return capped(b, h, i) ? problem->capped_bias[problem->row(b, h, i)] : given_bias(b, h, i);
    }
    bool biased() const {
        return problem->row_bias.data != nullptr || problem->key_bias.data != nullptr || problem->log_n;
    }

  private:
    int64_t entry(int64_t b, int64_t i) const { return b * per_item + (problem->causal ? i : 0); }
};

// Owns what `Rows` points to.
class RowTables {
  public:
    explicit RowTables(const Problem& problem);
    const Rows& rows() const { return rows_; }

  private:
    Rows rows_;
    std::vector<int32_t> slots_, seen_;
    std::vector<float> scales_, logs_;
};
