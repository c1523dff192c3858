package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// live: a consumer whose newest message is younger than this has caught up.
const live = time.Second

// tail is a subscription of the newest messages, and how long each was under way while it is looked at.
type tail struct {
	looking atomic.Pointer[histogram]
	seen    atomic.Int64
}

func age(message pulsar.ConsumerMessage) time.Duration {
	return time.Since(time.Unix(0, int64(binary.LittleEndian.Uint64(message.Payload()))))
}

func (tail *tail) consume(consumer pulsar.Consumer) {
	for message := range consumer.Chan() {
		if histogram := tail.looking.Load(); histogram != nil {
			histogram.add(age(message))
		}
		tail.seen.Add(1)
		_ = consumer.Ack(message.Message)
	}
}

// behind: a subscription falls a backlog behind, and catches up while publishing goes on at half of the rate at which
// the backlog was published and consumed by another one. Measured is the other one before and meanwhile, too.
func (load *load) behind() {
	near := &tail{}
	go near.consume(load.consumer(0, 0))
	load.consumer(0, 1).Close()
	producer := load.producer(0)
	started := time.Now()
	load.publish(producer, 0, *behindBy)
	for near.seen.Load() < int64(*behindBy) && time.Since(started) < *drain {
		time.Sleep(time.Millisecond)
	}
	rate := float64(*behindBy) / time.Since(started).Seconds() / 2
	go load.publish(producer, rate, 0)
	time.Sleep(*warmup)
	before, meanwhile := &histogram{}, &histogram{}
	near.looking.Store(before)
	time.Sleep(*window)

	late := load.newConsumer(1)
	near.looking.Store(meanwhile)
	load.measuring.Store(true)
	fmt.Println("window start")
	started = time.Now()
	caughtUp, consumed := false, int64(0)
	limit := time.After(*drain)
	for !caughtUp {
		select {
		case message := <-late.Chan():
			consumed++
			_ = late.Ack(message.Message)
			caughtUp = age(message) < live
			continue
		case <-limit:
		}
		break
	}
	seconds := time.Since(started).Seconds()
	load.measuring.Store(false)
	near.looking.Store(nil)
	fmt.Println("window end")
	line, err := json.Marshal(map[string]any{
		"rate": rate, "published": load.published.Load(), "consumed": consumed, "seconds": seconds,
		"failed": load.failed.Load(), "caught_up": caughtUp, "before": before.summary(), "meanwhile": meanwhile.summary(),
	})
	must(err)
	fmt.Println(string(line))
}

// newConsumer has a connection of its own: the other subscription's messages would hold up its own on a shared one.
func (load *load) newConsumer(subscription int) pulsar.Consumer {
	client := load.consuming
	defer func() { load.consuming = client }()
	load.consuming = newClient(*consumeURL)
	return load.consumer(0, subscription)
}
