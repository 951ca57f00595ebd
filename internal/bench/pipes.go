package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The load is that of redis-benchmark -c 50 -P 16.
const (
	connections = 50
	pipeline    = 16
)

// encode writes a command as Redis reads it.
func encode(b *bytes.Buffer, words []string) {
	fmt.Fprintf(b, "*%d\r\n", len(words))
	for _, word := range words {
		fmt.Fprintf(b, "$%d\r\n%s\r\n", len(word), word)
	}
}

// pipes are commands, encoded before the clock runs: one list a connection, of
// pipelines that are sent as one.
type pipes [][][]byte

// pipesOf encodes n commands, next(0) to next(n-1); n is rounded up to fill all.
func pipesOf(n int, next func(i int) []string) pipes {
	per := max(1, (n+connections*pipeline-1)/(connections*pipeline))
	all := make(pipes, connections)
	i := 0
	for c := range all {
		for range per {
			var b bytes.Buffer
			for range pipeline {
				encode(&b, next(i))
				i++
			}
			all[c] = append(all[c], b.Bytes())
		}
	}
	return all
}

// n returns how many commands there are.
func (p pipes) n() int {
	n := 0
	for _, all := range p {
		n += len(all) * pipeline
	}
	return n
}

// send sends them and returns the rate. Each answer is an array that begins with
// the number wanted, or one of such arrays.
func (p pipes) send(ctx context.Context, addr string, wanted int64) (float64, error) {
	conns := make([]net.Conn, len(p))
	for c := range conns {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return 0, err
		}
		defer func() { _ = conn.Close() }()
		conns[c] = conn
	}
	var group sync.WaitGroup
	errs := make([]error, len(p))
	begun := time.Now()
	for c, conn := range conns {
		group.Go(func() { errs[c] = exchange(conn, p[c], wanted) })
	}
	group.Wait()
	return float64(p.n()) / time.Since(begun).Seconds(), errors.Join(errs...)
}

func exchange(conn net.Conn, all [][]byte, wanted int64) error {
	r := bufio.NewReaderSize(conn, 16<<10)
	for _, some := range all {
		if _, err := conn.Write(some); err != nil {
			return err
		}
		for range pipeline {
			if err := skip(r, wanted); err != nil {
				return err
			}
		}
	}
	return nil
}

// skip reads an answer, which is an array of plain values or of such arrays.
func skip(r *bufio.Reader, wanted int64) error {
	n, err := header(r, '*')
	if err != nil {
		return err
	}
	if n < 1 {
		return errors.New("an answer is empty")
	}
	if inner, err := r.Peek(1); err == nil && inner[0] == '*' {
		for range n {
			if err := skip(r, wanted); err != nil {
				return err
			}
		}
		return nil
	}
	first, err := header(r, ':')
	if err != nil {
		return err
	}
	if first != wanted {
		return fmt.Errorf("an answer begins with %d, not %d", first, wanted)
	}
	for range n - 1 {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if line[0] != '$' {
			continue
		}
		size, err := strconv.Atoi(string(bytes.TrimSpace(line[1:])))
		if err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, r, int64(size+2)); err != nil {
			return err
		}
	}
	return nil
}

func header(r *bufio.Reader, kind byte) (int64, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != kind {
		return 0, fmt.Errorf("unexpected answer %q", strings.TrimSpace(line))
	}
	return strconv.ParseInt(strings.TrimSpace(line[1:]), 10, 64)
}

// redisBenchmark runs a command with redis-benchmark, under the same load, and
// returns the rate that it tells.
func redisBenchmark(ctx context.Context, addr string, n int, command ...string) (float64, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return 0, err
	}
	args := []string{
		"-h", host, "-p", port, "-c", strconv.Itoa(connections), "-P", strconv.Itoa(pipeline),
		"-n", strconv.Itoa(n), "-r", "100000000", "--csv",
	}
	out, err := exec.CommandContext(ctx, "redis-benchmark", append(args, command...)...).Output()
	if err != nil {
		return 0, fmt.Errorf("redis-benchmark: %w", err)
	}
	// "test","rps",… and below it the name and the rate.
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if fields := strings.Split(lines[len(lines)-1], `","`); len(fields) > 1 {
		if rate, err := strconv.ParseFloat(fields[1], 64); err == nil {
			return rate, nil
		}
	}
	return 0, fmt.Errorf("redis-benchmark told no rate: %q", out)
}
