package main

import (
	"flag"
	"log"
	"os"

	"github.com/coredns/caddy"
	_ "github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
)

// runCoreDNS serves names with the plugins that our Corefile names. CoreDNS's own main registers every plugin there is,
// those of clouds with their libraries, and flags whose names the components of Kubernetes have taken.
func runCoreDNS(arguments []string) int {
	flags := flag.NewFlagSet("coredns", flag.ExitOnError)
	path := flags.String("conf", "Corefile", "the Corefile")
	_ = flags.Parse(arguments)
	log.SetOutput(os.Stdout)
	caddy.AppName, caddy.Quiet = "CoreDNS", true
	caddy.TrapSignals()
	content, err := os.ReadFile(*path)
	if err != nil {
		log.Print(err)
		return 1
	}
	instance, err := caddy.Start(caddy.CaddyfileInput{Contents: content, Filepath: *path, ServerTypeName: "dns"})
	if err != nil {
		log.Print(err)
		return 1
	}
	instance.Wait()
	return 0
}
