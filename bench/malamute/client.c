/* One writer and one reader of a Malamute stream, in one thread over two TCP connections, without a library: ZMTP 3.0
 * (NULL security, DEALER) with MLP in it, framed so that it costs almost nothing. Any error ends it with status 1.
 *
 *   mlp_client PORT MODE COUNT SIZE [RATE]
 *
 *   MODE  flow      COUNT messages as fast as they are taken; prints messages per second, first write to last read
 *         latency   one message at a time; prints the 50th and 99th percentile in microseconds
 *         fair      a message each 5 ms, while another writer sends RATE messages a second to another stream, whose reader
 *                   takes nothing; prints the 50th and 99th percentile and the most in microseconds, from the time at
 *                   which each was due, and messages per second of the other writer
 *         resume    the same, and that reader begins to take its messages when half of the time has passed
 *
 * Each message has two frames, STREAM SEND and its content, which begins with a number: the reader checks that every
 * one comes, in order. Like any Malamute client, each side sends a PING a second.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 64, MORE = 1, LONG = 2, COMMAND = 4, ROOM = 1 << 18 };
enum { PONG = 3, SEND = 7, DELIVER = 8, OK = 14 };

typedef struct {
    int sock, more, answers; /* more: the next frame belongs to a message whose command was `kind` */
    unsigned char kind;
    char *out, in[ROOM];
    size_t out_at, out_len, in_len;
    double pinged;
} Peer;

static Peer writer, reader, busy, stopped;
static long count, sent, got;
static int size, resumed;
static double *due, *took; /* of the messages in mode fair: seconds */

#define PERIOD 0.005

static void fail(const char *what, const char *text) {
    fprintf(stderr, "%s: %s (%ld sent, %ld came)\n", what, text, sent, got);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static char *put(char *to, const void *from, size_t n) { return (char *)memcpy(to, from, n) + n; }

/* The head of a ZMTP frame. */
static char *head(char *to, int flags, size_t n) {
    if (n < 256) {
        *to++ = flags;
        *to++ = n;
        return to;
    }
    *to++ = flags | LONG;
    for (int shift = 56; shift >= 0; shift -= 8) *to++ = n >> shift;
    return to;
}

static char *string(char *to, const char *text) {
    *to++ = strlen(text);
    return put(to, text, strlen(text));
}

static char *command(char *to, int flags, int id, const char *first, const char *second) {
    size_t n = 3 + (first ? 1 + strlen(first) : 0) + (second ? 1 + strlen(second) : 0);
    to = head(to, flags, n);
    *to++ = 0xAA;
    *to++ = 0xA8;
    *to++ = id;
    if (first) to = string(to, first);
    if (second) to = string(to, second);
    return to;
}

/* Something of what came. */
static void take(Peer *p, int flags, const char *frame, size_t n) {
    int first = !p->more;
    p->more = flags & MORE;
    if (first) {
        if (n < 3 || memcmp(frame, "\xAA\xA8", 2)) fail("read", "no command");
        p->kind = frame[2];
        if (p->kind == OK) p->answers++;
        else if (p->kind != PONG && p->kind != SEND && p->kind != DELIVER) fail("read", "not expected: an error");
    } else if (p->kind == SEND || p->kind == DELIVER) {
        long number;
        memcpy(&number, frame, sizeof number);
        if (p == &stopped) return;
        if (n != (size_t)size || number != got || p != &reader) fail("read", "out of order");
        if (due) took[got] = now() - due[got];
        got++;
    }
}

static void receive(Peer *p) {
    ssize_t r = read(p->sock, p->in + p->in_len, ROOM - p->in_len);
    if (r == 0) fail("read", "connection closed");
    if (r < 0 && errno != EAGAIN) fail("read", strerror(errno));
    if (r > 0) p->in_len += r;
    size_t at = 0;
    for (;;) {
        size_t left = p->in_len - at, start = 2, n;
        const unsigned char *f = (void *)(p->in + at);
        if (left < 2) break;
        if (f[0] & LONG) {
            if (left < 9) break;
            n = 0;
            for (int i = 1; i < 9; i++) n = n << 8 | f[i];
            start = 9;
        } else {
            n = f[1];
        }
        if (start + n > ROOM) fail("read", "a frame that is too long");
        if (left < start + n) break;
        if (!(f[0] & COMMAND)) take(p, f[0], (const char *)f + start, n);
        at += start + n;
    }
    p->in_len -= at;
    memmove(p->in, p->in + at, p->in_len);
}

static void flush(Peer *p) {
    if (p->out_at == p->out_len) return;
    ssize_t w = write(p->sock, p->out + p->out_at, p->out_len - p->out_at);
    if (w < 0 && errno != EAGAIN) fail("write", strerror(errno));
    if (w > 0) p->out_at += w;
}

static void say(Peer *p, char *end) {
    p->out_at = 0;
    p->out_len = end - p->out;
}

static void exchange(int wait_us) {
    Peer *peers[] = {&writer, &reader, &busy, &stopped};
    int all = busy.out ? resumed ? 4 : 3 : 2;
    struct pollfd polled[4];
    struct timespec wait = {wait_us / 1000000, wait_us % 1000000 * 1000L};
    for (int i = 0; i < all; i++) {
        Peer *p = peers[i];
        if (p->out && p->out_at == p->out_len && now() - p->pinged > 1.0) {
            say(p, command(p->out, 0, 2, NULL, NULL));
            p->pinged = now();
        }
        polled[i] = (struct pollfd){.fd = p->sock, .events = POLLIN | (p->out_at < p->out_len ? POLLOUT : 0)};
    }
    int n = ppoll(polled, all, &wait, NULL);
    for (int i = 0; n > 0 && i < all; i++) {
        if (polled[i].revents & POLLOUT) flush(peers[i]);
        if (polled[i].revents & (POLLIN | POLLHUP)) receive(peers[i]);
    }
}

static void await(Peer *p, int answers) {
    double end = now() + 30;
    while (p->answers < answers) {
        if (now() > end) fail("handshake", "no answer");
        exchange(100000);
        if (p == &stopped) flush(p), receive(p);
    }
}

static void join(Peer *p, int port, const char *name) {
    static const char ready[] = "\5READY\13Socket-Type\0\0\0\6DEALER\10Identity\0\0\0";
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int one = 1;
    char greeting[64] = {0}, theirs[64];
    size_t came = 0;
    p->out = malloc((size_t)CHUNK * (size + 64) + 4096);
    p->pinged = now();
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    p->sock = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(p->sock, (void *)&address, sizeof address)) fail("connect", strerror(errno));
    setsockopt(p->sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    greeting[0] = 0xFF;
    greeting[9] = 0x7F;
    greeting[10] = 3;
    memcpy(greeting + 12, "NULL", 4);
    if (write(p->sock, greeting, 64) != 64) fail("greeting", strerror(errno));
    while (came < 64) {
        ssize_t r = read(p->sock, theirs + came, 64 - came);
        if (r <= 0) fail("greeting", "closed");
        came += r;
    }
    fcntl(p->sock, F_SETFL, O_NONBLOCK);
    char body[64], *end = put(body, ready, sizeof ready); /* the final NUL is the fourth octet of a length */
    char *to = head(p->out, COMMAND, end - body);
    to = put(to, body, end - body);
    char open[300], *o = open;
    o = put(o, "\xAA\xA8\1\10MALAMUTE\0\1", 14);
    o = string(o, name);
    to = head(to, 0, o - open);
    to = put(to, open, o - open);
    say(p, to);
    await(p, 1);
}

/* The next messages of a peer that has sent `*number`. */
static void more(Peer *p, long *number, long n, char *payload) {
    char *to = p->out;
    for (long i = 0; i < n; i++) {
        memcpy(payload, number, sizeof *number);
        ++*number;
        to = command(to, MORE, SEND, "temp.moscow", NULL);
        to = head(to, 0, size);
        to = put(to, payload, size);
    }
    say(p, to);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void flow(char *payload) {
    double began = now(), moved = began;
    for (long before = 0; got < count;) {
        if (writer.out_at == writer.out_len && sent < count) more(&writer, &sent, count - sent < CHUNK ? count - sent : CHUNK, payload);
        exchange(1000000);
        if (got > before) moved = now(), before = got;
        if (now() > moved + 30) fail("flow", "nothing comes");
    }
    printf("%.0f\n", count / (now() - began));
}

static void latency(char *payload) {
    double *times = malloc(count * sizeof *times), end = now() + 120;
    for (long i = 0; i < count; i++) {
        while (writer.out_at < writer.out_len) exchange(1000000);
        double began = now();
        more(&writer, &sent, 1, payload);
        flush(&writer);
        while (got <= i) {
            if (now() > end) fail("latency", "nothing comes");
            exchange(1000000);
        }
        times[i] = (now() - began) * 1e6;
    }
    qsort(times, count, sizeof *times, ascending);
    printf("%.1f %.1f\n", times[count / 2], times[count * 99 / 100]);
}

static void fair(char *payload, int port, long rate, int resumes) {
    long flood = 0;
    join(&stopped, port, "stopped");
    say(&stopped, command(stopped.out, 0, 6, "busy", ""));
    await(&stopped, 2);
    join(&busy, port, "busy");
    say(&busy, command(busy.out, 0, 5, "busy", NULL));
    await(&busy, 2);
    due = malloc(count * sizeof *due);
    took = malloc(count * sizeof *took);
    double began = now(), end = began + count * PERIOD + 60, t;
    while (got < count) {
        long late = ((t = now()) - began) * rate - flood;
        if (busy.out_at == busy.out_len && late > 0) more(&busy, &flood, late < CHUNK ? late : CHUNK, payload), flush(&busy);
        if (sent < count && t >= began + sent * PERIOD && writer.out_at == writer.out_len) {
            due[sent] = began + sent * PERIOD;
            more(&writer, &sent, 1, payload);
            flush(&writer);
        }
        resumed = resumes && got > count / 2;
        if (t > end) fail("fair", "nothing comes");
        exchange(late > CHUNK ? 0 : 500);
    }
    t = now() - began;
    qsort(took, count, sizeof *took, ascending);
    printf("%.1f %.1f %.1f %.0f\n", took[count / 2] * 1e6, took[count * 99 / 100] * 1e6, took[count - 1] * 1e6, flood / t);
}

int main(int argc, char **argv) {
    if (argc < 5) fail("usage", "mlp_client PORT flow|latency|fair|resume COUNT SIZE [RATE]");
    int port = atoi(argv[1]);
    count = atol(argv[3]);
    size = atoi(argv[4]);
    if (size < (int)sizeof sent) fail("usage", "SIZE is 8 or more");
    char *payload = malloc(size);
    memset(payload, 'x', size);
    writer.sock = reader.sock = busy.sock = -1;
    join(&reader, port, "reader");
    join(&writer, port, "writer");
    say(&reader, command(reader.out, 0, 6, "weather", "temp.*"));
    await(&reader, 2);
    say(&writer, command(writer.out, 0, 5, "weather", NULL));
    await(&writer, 2);
    if (!strcmp(argv[2], "flow")) flow(payload);
    else if (!strcmp(argv[2], "latency")) latency(payload);
    else fair(payload, port, argc > 5 ? atol(argv[5]) : 22000, !strcmp(argv[2], "resume"));
    return 0;
}
