// The smallest channel server on uWebSockets 20, for `simurgh-bench latency`: `uws ADDRESS PORT`.
// It knows joins and pushes of serializer V2 without escapes, and answers nothing but joins.
#include <cstdlib>
#include <string>
#include <string_view>

#include "App.h"

struct None {};

// The text between the quotes number `nth` and `nth + 1` of a message, from 0.
static std::string_view quoted(std::string_view text, int nth) {
    size_t begin = std::string_view::npos;
    for (int quote = -1; quote < nth; quote++) {
        begin = text.find('"', begin + 1);
        if (begin == std::string_view::npos) return {};
    }
    size_t end = text.find('"', begin + 1);
    return end == std::string_view::npos ? std::string_view{} : text.substr(begin + 1, end - begin - 1);
}

int main(int count, char **words) {
    if (count != 3) return 2;
    uWS::App app;
    app.ws<None>("/*", {
        .compression = uWS::DISABLED,
        .idleTimeout = 0,
        .maxBackpressure = 16 * 1024 * 1024,
        .sendPingsAutomatically = false,
        .message = [&app](auto *socket, std::string_view text, uWS::OpCode code) {
            // ["1","1","TOPIC","EVENT",PAYLOAD]
            std::string_view topic = quoted(text, 4), event = quoted(text, 6);
            if (event.empty()) return;
            std::string out;
            if (event == "phx_join") {
                socket->subscribe(topic);
                out.append("[\"1\",\"1\",\"").append(topic);
                out.append("\",\"phx_reply\",{\"status\":\"ok\",\"response\":{}}]");
                socket->send(out, code);
                return;
            }
            out.append("[null,null,").append(text.substr(topic.data() - text.data() - 1));
            app.publish(topic, out, code);
        },
    });
    app.listen(words[1], std::atoi(words[2]), [](auto *socket) { if (!socket) std::exit(1); });
    app.run();
}
