/* Who imports that module; the implementation is a plain file of the program. */
import names;

int main() {
    float *floats = fresh<float>(100);
    double *doubles = fresh_typed<double>(100);
    held all(1000);
    bool fine = floats && doubles && all.whole() && is_whole(all.more);
    fine = !gone_from(nullptr, nullptr) && fine; /* no arena: refused */
    return fine && gone(floats) && gone(doubles) ? 0 : 1;
}
