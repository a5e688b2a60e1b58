#include "rows.h"

#include <cmath>

RowTables::RowTables(const Problem& problem) : rows_{} {
    rows_.problem = &problem;
    const int64_t slots = problem.slots;
    const bool masked = problem.key_mask != nullptr;
    const int64_t items = masked ? problem.batches : 1;
    slots_.resize(items * slots);
    if (masked) seen_.resize(items * (slots + 1));
    for (int64_t b = 0; b < items; ++b) {
        int32_t count = 0;
        for (int64_t j = 0; j < slots; ++j) {
            if (!masked || problem.key_mask[b * problem.mask_batch + j])
                slots_[b * slots + count++] = static_cast<int32_t>(j);
            if (masked) seen_[b * (slots + 1) + j + 1] = count;
        }
    }
    rows_.visible_slots = slots_.data();
    rows_.seen = masked ? seen_.data() : nullptr;
    const int64_t queries = problem.causal || problem.queries == 0 ? problem.queries : 1;
    rows_.per_item = masked ? queries : 0;
    for (int64_t b = 0; b < items; ++b)
        for (int64_t i = 0; i < queries; ++i) {
            const double n = std::fmax(rows_.visible(b, i), 1);
            const double power = problem.exponent == 0     ? 1
                                 : problem.exponent == 0.5 ? 1 / std::sqrt(n)
                                                           : std::pow(n, -problem.exponent);
            scales_.push_back(static_cast<float>(problem.factor * power));
            logs_.push_back(problem.log_n ? static_cast<float>(std::log(n)) : 0.0f);
        }
    rows_.scales = scales_.data();
    rows_.logs = logs_.data();
}
