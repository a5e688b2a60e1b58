// Weights, inputs and their products with the compiler's own vectors, for any number of lanes.

struct Weights {
    Integers byte[4];  // of each output
};

struct Inputs {
    int32_t byte[4];
};

INLINE Weights weights_at(const int8_t* from) {
    Weights w{};
    for (int lane = 0; lane < LANES; ++lane)
        for (int i = 0; i < 4; ++i) w.byte[i][lane] = from[4 * lane + i];
    return w;
}

INLINE Inputs inputs_at(const uint8_t* from) { return {{from[0], from[1], from[2], from[3]}}; }

INLINE Integers dot(Integers sum, const Inputs& a, const Weights& w) {
    return sum + w.byte[0] * a.byte[0] + w.byte[1] * a.byte[1] + w.byte[2] * a.byte[2] + w.byte[3] * a.byte[3];
}

// Outputs 16 j + lane of w[j], where the weights of one slot lie as in a chunk.
INLINE void weights_of_slots(Weights* w, const int8_t* a, const int8_t* b, const int8_t* c, const int8_t* d) {
    const int8_t* slots[4] = {a, b, c, d};
    for (int j = 0; j < 4; ++j) {
        w[j] = Weights{};
        for (int lane = 0; lane < LANES; ++lane)
            for (int i = 0; i < 4; ++i) w[j].byte[i][lane] = slots[i][16 * (lane / 4) + 4 * j + lane % 4];
    }
}
